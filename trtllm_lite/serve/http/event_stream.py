"""Writes a response as a stream."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtllm_lite.serve.http.connection import Connection

_LAST_CHUNK = b"0\r\n\r\n"


class EventStream:
    """A response of server-sent events. Every write is a chunk, which is sent in the next iteration of the loop."""

    __slots__ = ("_chunked", "_connection", "_head")

    def __init__(self, connection: "Connection", head: bytes, *, chunked: bool) -> None:
        self._connection = connection
        self._head = head  # sent with the first event
        self._chunked = chunked

    @property
    def paused(self) -> bool:
        """Whether the client is behind in reading; ``Connection.on_resume`` tells when it has caught up."""
        return self._connection.paused

    def write(self, events: bytes) -> None:
        """Send whole events, at least one."""
        data = b"%x\r\n%b\r\n" % (len(events), events) if self._chunked else events
        if self._head:
            data, self._head = self._head + data, b""
        self._connection.write(data)

    def end(self) -> None:
        """End the stream."""
        if self._chunked or self._head:
            self._connection.write(self._head + (_LAST_CHUNK if self._chunked else b""))
            self._head = b""
