"""HTTP/1.1 over asyncio, as far as a server of models needs it, parsed by httptools. Models are unknown here.

All writes of connections in one iteration of the loop are sent by one call (``outbox.py``), the only work per token.
"""
