"""Bounds what a client may send, and the time it may take."""

from dataclasses import dataclass

HIGH_WATER = 64 << 10
"""Unread bytes of a client beyond which its stream pauses: the next chunk then holds all events since."""


@dataclass(frozen=True)
class HttpLimits:
    """Bounds of one connection, and of all connections together.

    - ``max_head_bytes``, ``max_headers``: size of a request's line and headers, and their number
    - ``max_body_bytes``: size of a request's body
    - ``max_pipelined``: requests that a client may send before earlier ones are answered
    - ``head_timeout``, ``body_timeout``: seconds for the whole head of a request, and for the whole body
    - ``idle_timeout``: seconds that a connection may be silent between requests
    - ``write_timeout``: seconds for which a client may read nothing of what is written to it
    - ``max_decoded_bytes``: memory that a body may take once it is decoded, at worst (see ``decoded_bytes``)
    - ``max_held_bytes``: memory that all bodies together, those of running requests included, may take at worst
    - ``max_connections``: open connections; more are answered 503 and closed
    """

    max_head_bytes: int = 64 << 10
    max_headers: int = 128
    max_body_bytes: int = 16 << 20
    max_pipelined: int = 8
    head_timeout: float = 30.0
    body_timeout: float = 120.0
    idle_timeout: float = 300.0
    write_timeout: float = 60.0
    max_decoded_bytes: int = 128 << 20
    max_held_bytes: int = 1 << 30
    max_connections: int = 16_384
