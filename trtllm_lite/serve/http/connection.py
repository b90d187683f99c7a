"""One client's connection."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

import httptools

from trtllm_lite.serve.http.event_stream import EventStream
from trtllm_lite.serve.http.limits import HIGH_WATER, LARGE_BODY
from trtllm_lite.serve.http.messages import EVENT_HEADERS, EVENTS, TEXT, Request, Response, bodies_are_held, head_of
from trtllm_lite.serve.http.outbox import Outlet

if TYPE_CHECKING:
    from trtllm_lite.serve.http.server import HttpServer

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class _RefusedError(Exception):
    """The request's head or body goes beyond a limit; the connection has the answer."""


class Connection(asyncio.Protocol):
    """Parses requests, has the server answer them one after the other, and hears when the client goes away."""

    def __init__(self, server: "HttpServer") -> None:
        self._server = server
        self._limits = server.limits
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # until connection_made
        self._outlet: Outlet = None  # type: ignore[assignment]
        self._waiting: deque[tuple[Request, bool, bool]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._refusal: Response | None = None
        self._closed = False
        self.paused = False
        """Whether the client is so far behind in reading that nothing more should be written for now."""
        self.on_resume: Callable[[], None] | None = None
        """Called when the client has caught up."""
        self.deadline: float | None = None
        """When the server gives up waiting for the client, by the loop's clock; None while it waits for nothing."""
        self._is_receiving = False
        self._is_head_checked = False  # of a request with a large body
        self._discarded_bytes = 0
        self._held_bytes = 0  # of bodies that arrive, or whose requests are not answered yet
        self._unread_bytes = 0  # what the client had not read when its deadline was set
        self._begin_message()

    @property
    def client(self) -> str:
        """The client's address, as the access log shows it."""
        peer = self._transport.get_extra_info("peername")
        return peer[0] if isinstance(peer, tuple) else "unix"

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered, or arriving."""
        return self._task is None and not self._waiting and not self._is_receiving

    def seconds_since(self, instant: float) -> float:
        """Seconds since an instant of the loop's clock."""
        return self._server.now() - instant

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class has another base
        self._transport.set_write_buffer_limits(high=HIGH_WATER)
        self._outlet = Outlet(self._server.outbox, self._transport)
        if not self._server.admit(self):
            busy = f"there are {self._limits.max_connections} connections already: come back later\n".encode()
            self._outlet.write(_closing(Response(503, busy, TEXT, {"Retry-After": "1"})))
            self._close()
            return
        self.deadline = self._server.now() + self._limits.head_timeout

    def data_received(self, data: bytes) -> None:
        if self._closed:
            self._discard(len(data))
            return
        if not self._is_receiving:
            self._is_receiving = True
            self._set_deadline()
        self._has_read_one = False
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._refuse(self._refusal or Response(400, b"this is not HTTP/1.1\n", TEXT))
            return
        if not self._has_read_one:  # else the end of another request is among these bytes
            self._head_bytes += len(data)
        if not self._is_in_body and self._is_receiving and self._head_bytes > self._limits.max_head_bytes:
            self._refuse(self._too_long_head())
        if len(self._waiting) > self._limits.max_pipelined:
            self._refuse(Response(400, b"too many requests before earlier ones are answered\n", TEXT))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._closed = True
        self.deadline = None
        self._server.forget(self)
        self._waiting.clear()
        self._begin_message()
        self._hold(-self._held_bytes)
        self._parser = None  # it refers to this connection, which so needs no search for cycles to be freed
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self.paused = True
        self._set_deadline()

    def resume_writing(self) -> None:
        self.paused = False
        self._set_deadline()
        if self.on_resume is not None:
            self.on_resume()

    # What the parser calls.

    def on_message_begin(self) -> None:
        self._begin_message()
        self._is_receiving = True

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > self._limits.max_head_bytes:
            self._raise(self._too_long_head())

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self._headers) >= self._limits.max_headers:
            self._raise(Response(431, f"more than {self._limits.max_headers} headers\n".encode(), TEXT))
        self._num_header_bytes += len(name) + len(value)
        if self._num_header_bytes > self._limits.max_head_bytes:
            self._raise(self._too_long_head())
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        if self._parser.get_method() == b"CONNECT":
            self._raise(Response(400, b"this is no proxy\n", TEXT))
        if self._parser.should_upgrade():
            self._is_offer = True
            return
        limits = self._limits
        length = self._headers.get("content-length", "0")
        if length.isascii() and length.isdigit() and (len(length) > 15 or int(length) > limits.max_body_bytes):
            self._raise(self._server.too_large(length[:15], limits.max_body_bytes))
        self._is_in_body = True
        self._set_deadline()
        if self._headers.get("expect", "").lower() == "100-continue" and self._task is None:
            self._check_head()
            self._outlet.write(_CONTINUE)  # never into the midst of another answer; clients go on without, too

    def on_body(self, part: bytes) -> None:
        self._body.append(part)
        self._body_bytes += len(part)
        self._hold(len(part))
        if self._body_bytes > self._limits.max_body_bytes:
            self._raise(self._server.too_large(f"more than {self._body_bytes - 1}", self._limits.max_body_bytes))
        if self._server.held_bytes > self._limits.max_held_bytes:
            self._raise(bodies_are_held(self._limits))
        if self._body_bytes > LARGE_BODY and not self._is_head_checked:
            self._check_head()

    def _check_head(self) -> None:
        """Refuse the request whose body is about to come if its head is not in order."""
        self._is_head_checked = True
        refusal = self._server.check_head(self._headers)
        if refusal is not None:
            self._raise(refusal)

    def on_message_complete(self) -> None:
        assert self._parser is not None
        if self._is_offer:
            return
        url = httptools.parse_url(self._url)
        request = Request(
            method=self._parser.get_method().decode("latin-1"),
            path=(url.path or b"/").decode("latin-1"),
            query=(url.query or b"").decode("latin-1"),
            headers=self._headers,
            body=b"".join(self._body),
            connection=self,
            received=self._server.now(),
        )
        is_new = self._parser.get_http_version() == "1.1"
        keep_alive = is_new and self._parser.should_keep_alive()
        self._waiting.append((request, keep_alive, is_new))
        self._has_read_one = True
        self._begin_message()
        if self._task is None:
            self._answer_next()
        else:
            self._set_deadline()

    def _begin_message(self) -> None:
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._body_bytes = self._head_bytes = self._num_header_bytes = 0
        self._is_in_body = self._is_receiving = self._is_offer = self._is_head_checked = False

    def _hold(self, num_bytes: int) -> None:
        """So many more bytes of bodies are held for this connection."""
        self._held_bytes += num_bytes
        self._server.held_bytes += num_bytes

    def _feed(self, data: bytes) -> None:
        """Parse ``data``. Offers of another protocol, such as Java's clients make (h2c), are overlooked.

        The parser takes what follows an offer for the other protocol, though it is the request's body. So the request
        is read anew, without its offer.
        """
        while len(self._waiting) <= self._limits.max_pipelined:
            assert self._parser is not None
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                lines = [b"%b %b HTTP/1.1" % (self._parser.get_method(), self._url)]
                lines += [
                    f"{name}: {value}".encode("latin-1")
                    for name, value in self._headers.items()
                    if name not in ("upgrade", "connection")
                ]
                data = b"\r\n".join([*lines, b"", data[offer.args[0] :]])
                self._parser = httptools.HttpRequestParser(self)
            else:
                return

    def _too_long_head(self) -> Response:
        longest = self._limits.max_head_bytes
        return Response(431, f"the request's line and headers are longer than {longest} bytes\n".encode(), TEXT)

    def _raise(self, refusal: Response) -> None:
        self._refusal = refusal
        raise _RefusedError

    # Answers.

    def _answer_next(self) -> None:
        request, self._keep_alive, self._may_chunk = self._waiting.popleft()
        self._task = self._server.loop.create_task(self._answer(request))
        self._set_deadline()

    async def _answer(self, request: Request) -> None:
        try:
            response = await self._server.handler(request)
        except Exception:
            self.abort()
            raise
        if response is not None:
            self._send(response, with_body=request.method != "HEAD")
        self._task = None
        self._hold(-min(len(request.body), self._held_bytes))
        if self._closed:
            return
        if not self._keep_alive or self._server.is_closing:
            self._close()
        elif self._waiting:
            self._answer_next()
        else:
            self._set_deadline()

    def _send(self, response: Response, *, with_body: bool = True) -> None:
        if self._closed:
            return
        close = not self._keep_alive or self._server.is_closing
        head = head_of(response.status, response.content_type, response.headers, len(response.body), close=close)
        self._outlet.write(head + response.body if with_body else head)

    def open_stream(self, headers: Mapping[str, str]) -> EventStream:
        """Begin the answer to the current request with status 200 and server-sent events that come over time."""
        if not self._may_chunk:
            self._keep_alive = False
        close = not self._keep_alive
        head = head_of(200, EVENTS, {**EVENT_HEADERS, **headers}, None, close=close)
        return EventStream(self, head, chunked=not close)

    def write(self, data: bytes) -> None:
        """Send ``data`` as soon as may be; nothing happens if the client is gone."""
        if not self._closed:
            self._outlet.write(data)

    # Ends.

    def _set_deadline(self) -> None:
        """Begin to wait for what the client has to do next: read, send the rest of a request, or send another."""
        limits = self._limits
        if self.paused or self._closed:
            seconds = limits.write_timeout
        elif self._is_in_body:
            seconds = limits.body_timeout
        elif self._is_receiving:
            seconds = limits.head_timeout
        elif self._task is None:
            seconds = limits.idle_timeout
        else:
            self.deadline = None
            return
        self.deadline = self._server.now() + seconds
        self._unread_bytes = self._transport.get_write_buffer_size()

    def expire(self) -> None:
        """The deadline has passed. A client that reads, however slowly, is waited for again."""
        if self.paused or self._closed:
            if self._transport.get_write_buffer_size() < self._unread_bytes:
                self._set_deadline()
            else:
                self._transport.abort()
        elif self._is_receiving:
            self._refuse(Response(408, b"the request took too long to arrive\n", TEXT))
        else:
            self._close()

    def close_if_idle(self) -> None:
        """Close the connection unless a request is under way."""
        if self.is_idle:
            self._close()

    def abort(self) -> None:
        """Close the connection at once, whatever goes on."""
        self._transport.abort()

    def _refuse(self, response: Response) -> None:
        """Answer with an error what cannot be read any further, unless an earlier answer is under way, and close.

        What the client still sends is dropped until it has seen the answer: closing at once would make its system
        throw the answer away (RFC 9112, section 9.6).
        """
        if self._task is not None:
            self.abort()
            return
        self._outlet.write(_closing(response))
        self._closed = True
        self._set_deadline()
        self._outlet.flush()
        self._transport.write_eof()

    def _discard(self, num_bytes: int) -> None:
        """Drop what arrives behind a refusal, up to a bound."""
        self._discarded_bytes += num_bytes
        if self._discarded_bytes > self._limits.max_body_bytes:
            self.abort()

    def _close(self) -> None:
        self._closed = True
        self._outlet.flush()
        self._set_deadline()  # for what is still unread
        self._transport.close()


def _closing(response: Response) -> bytes:
    """The bytes of a response that is the last of its connection."""
    head = head_of(response.status, response.content_type, response.headers, len(response.body), close=True)
    return head + response.body
