"""HTTP/1.1 over asyncio, as far as a server of models needs it; httptools parses. Knows nothing of models.

A framework's chunk costs several times what a token costs (../../README.md has the figures), so that connections write
what an endpoint gives them straight to the transport.
"""
