"""HTTP/1.1 over asyncio, as far as a server of models needs it; httptools parses. Knows nothing of models.

Connections write what an endpoint gives them straight to the transport, as nothing else may be done for each token.
"""
