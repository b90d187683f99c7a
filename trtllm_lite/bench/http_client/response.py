"""Parses the bytes of one HTTP/1.1 response as they arrive (RFC 9112)."""

from collections.abc import Callable

from trtllm_lite.bench.http_client.events import EventStream
from trtllm_lite.errors import ServerError, shown

_MAX_HEAD = 64 << 10
_MAX_CHUNK_LINE = 1 << 10
_MAX_BODY = 64 << 20  # bound on bodies that are not streams, which are kept whole

NO_RESPONSE = "connection closed without a response"

Take = Callable[[bytes, float], None]


class Response:
    """One response: ``take`` gets its bytes, cut anywhere, with the time at which they came.

    After the last bytes ``done`` is true; ``status`` and ``headers`` (lower-case names) are known before. A body of
    server-sent events is counted in ``events``, which is None for other bodies: they are kept in ``body``. ``end_s`` is
    the time of the last byte. ``reusable`` tells whether the connection can carry another request.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.events: EventStream | None = None
        self.body = bytearray()
        self.end_s = 0.0
        self.started = self.done = self.reusable = False
        self.take: Take = self._take_head
        self._sink: Take = self._keep
        self._rest = b""  # an incomplete head or line of the framing
        self._left = 0  # missing bytes of the body, or of a chunk and its line end

    def close(self, now: float) -> None:
        """Note the end of the connection. Raises ServerError if the response is incomplete."""
        if self.take == self._take_rest:
            self._finish(now)
        elif not self.done:
            if not self.started:
                raise ServerError("the server closed the connection before a response", NO_RESPONSE)
            raise ServerError("the server closed the connection within a response", "connection lost")

    def _take_head(self, data: bytes, now: float) -> None:
        self.started = True
        head, found, body = (self._rest + data).partition(b"\r\n\r\n")
        if not found:
            self._rest = head
            if len(head) > _MAX_HEAD:
                raise _malformed(f"headers of more than {_MAX_HEAD} bytes")
            return
        self._rest = b""
        self._read_head(head)
        if 100 <= self.status < 200:  # an interim response: the final one is still to come
            if body:
                self.take(body, now)
            return
        self._choose_framing()
        if self.take == self._take_length and not self._left:
            self._finish(now)
        elif body:
            self.take(body, now)

    def _read_head(self, head: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        status = rest[:3]
        if version not in ("HTTP/1.1", "HTTP/1.0") or not (status.isascii() and status.isdigit()):
            raise _malformed(f"a response that begins with {shown(first)}")
        self.status = int(status)
        pairs = (line.partition(":") for line in lines)
        self.headers = {name.lower(): value.strip() for name, _, value in pairs}
        wish = self.headers.get("connection", "").lower()
        self.reusable = "close" not in wish if version == "HTTP/1.1" else "keep-alive" in wish

    def _choose_framing(self) -> None:
        if self.headers.get("content-type", "").lower().startswith("text/event-stream"):
            self.events = EventStream()
            self._sink = self.events.take
        length = self.headers.get("content-length")
        if self.status in (204, 304):
            self.take = self._take_length
        elif "chunked" in self.headers.get("transfer-encoding", "").lower():
            self.take = self._take_chunks
        elif length is None:
            self.take = self._take_rest
            self.reusable = False
        elif length.isascii() and length.isdigit():
            self._left = int(length)
            self.take = self._take_length
        else:
            raise _malformed(f"a Content-Length of {shown(length)}")

    def _take_rest(self, data: bytes, now: float) -> None:
        self._sink(data, now)

    def _take_length(self, data: bytes, now: float) -> None:
        self._left -= len(data)
        if self._left < 0:
            raise _malformed(f"{-self._left} bytes more than its Content-Length")
        self._sink(data, now)
        if not self._left:
            self._finish(now)

    def _take_chunks(self, data: bytes, now: float) -> None:
        if self._rest:
            data, self._rest = self._rest + data, b""
        begin, size = 0, len(data)
        while begin < size:
            if not self._left:
                end = data.find(b"\r\n", begin)
                if end < 0:
                    self._keep_line(data[begin:])
                    return
                self._left = _chunk_size(data[begin:end]) + 2
                begin = end + 2
                if self._left == 2:
                    self._left = 0
                    self.take = self._take_trailers
                    self.take(data[begin:], now)
                    return
            stop = begin + self._left
            end = stop - 2  # the end of the chunk, where its line end begins
            if stop <= size:
                if data[stop - 1] != 10:
                    raise _malformed("a chunk that does not end where its size says")
                self._left = 0
                if begin < end:
                    self._sink(data[begin:end], now)
            else:
                self._left = stop - size
                if begin < end:
                    self._sink(data[begin:end], now)
            begin = stop

    def _take_trailers(self, data: bytes, now: float) -> None:
        """Skip the trailer after the last chunk: fields and a blank line."""
        *lines, rest = (self._rest + data).split(b"\r\n")
        self._rest = b""
        if b"" in lines:
            if rest or lines[-1]:
                raise _malformed("bytes after its end")
            self._finish(now)
        else:
            self._keep_line(rest)

    def _keep_line(self, rest: bytes) -> None:
        if len(rest) > _MAX_CHUNK_LINE:
            raise _malformed(f"a line of more than {_MAX_CHUNK_LINE} bytes between chunks")
        self._rest = rest

    def _keep(self, data: bytes, now: float) -> None:
        del now
        self.body += data
        if len(self.body) > _MAX_BODY:
            raise _malformed(f"a body of more than {_MAX_BODY} bytes")

    def _finish(self, now: float) -> None:
        if self.events is not None:
            self.events.end(now)
        self.done, self.end_s = True, now


def _chunk_size(line: bytes) -> int:
    """The size in a chunk's first line, which may have extensions after it."""
    try:
        size = int(line, 16)
    except ValueError:
        try:
            size = int(line.partition(b";")[0], 16)
        except ValueError:
            size = -1
    if size < 0:
        raise _malformed(f"a chunk of the size {shown(line)}")
    return size


def _malformed(what: str) -> ServerError:
    return ServerError(f"the server sent {what}, which is not HTTP/1.1", "malformed response")
