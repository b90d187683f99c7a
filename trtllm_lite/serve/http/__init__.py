"""HTTP/1.1 over asyncio, as far as a server of models needs it; httptools parses. Knows nothing of models.

What connections write in one turn of the loop is sent by one call (``outbox.py``); nothing else is done for each token.
"""
