"""HTTP/1.1 over asyncio, as far as a server of models needs it; httptools parses. It has no knowledge of models.

All writes of connections in one iteration of the loop are sent by one call (``outbox.py``), the only work per token.
"""
