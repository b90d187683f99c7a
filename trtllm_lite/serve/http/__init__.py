"""HTTP/1.1 over asyncio, as far as a server of models needs it, parsed by httptools. The package knows nothing of models.

All writes of connections in one iteration of the loop are sent by one call (``outbox.py``), the only work per token.
"""
