"""Handles one client's connection."""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, cast

from trtllm_lite.serve.http.event_stream import EventStream
from trtllm_lite.serve.http.limits import HIGH_WATER
from trtllm_lite.serve.http.messages import EVENT_HEADERS, EVENTS, TEXT, Request, Response, head_of
from trtllm_lite.serve.http.outbox import Outlet
from trtllm_lite.serve.http.request_reader import RequestError, RequestReader

if TYPE_CHECKING:
    from trtllm_lite.serve.http.server import HttpServer

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_LARGE_BODY = 64 << 10  # bytes; smaller bodies take one or two reads
_NOBODY = ""  # stands for the client of bytes that are read to be dropped
_RESET_SECONDS = 0.2  # time in which a nearby client's system refuses bytes for a closed connection
_TCP_CLOSE = 7  # tcpi_state, the first byte of Linux's tcp_info, once the other end has reset the connection


class _Waiting(NamedTuple):
    """A request that waits for the answers to earlier requests; see :meth:`Connection.take`."""

    request: Request
    refusal: Response | None
    keep_alive: bool
    may_chunk: bool


class Connection(asyncio.BufferedProtocol):
    """Has the server answer a client's requests one after the other, and detects that the client goes away.

    A client may close its half of the connection and still read. A client that has closed all of it looks the same
    until its system refuses what is sent to it: so the server sends it an interim response.
    """

    def __init__(self, server: "HttpServer") -> None:
        self._server = server
        self._limits = server.limits
        self._reader: RequestReader | None = RequestReader(server, self)
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # until connection_made
        self._outlet: Outlet = None  # type: ignore[assignment]
        self._waiting: deque[_Waiting] = deque()
        self._task: asyncio.Task[None] | None = None
        self._refusal: Response | None = None  # the answer to unreadable bytes, sent after earlier answers
        self._closed = False
        self._is_half_closed = False  # whether the client has half-closed the connection
        self._has_begun_stream = False
        self.paused = False
        """Whether the client is so far behind in reading that writes should pause."""
        self.on_resume: Callable[[], None] | None = None
        """Called when the client has caught up."""
        self.deadline: float | None = None
        """The time, by the loop's clock, when the server gives up waiting for the client; None if it does not wait."""
        self._discarded_bytes = 0
        self._held_bytes = 0  # bytes of bodies that arrive, or whose requests are not answered yet
        self._unread_bytes = 0  # bytes that the client had not read when its deadline was set

    @property
    def client(self) -> str:
        """The client's address, as the access log shows it."""
        peer = self._transport.get_extra_info("peername")
        return peer[0] if isinstance(peer, tuple) else "unix"

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered, or arriving."""
        return self._task is None and not self._waiting and not self._is_receiving

    @property
    def _is_receiving(self) -> bool:
        return self._reader is not None and self._reader.is_receiving

    def seconds_since(self, instant: float) -> float:
        """Seconds since an instant of the loop's clock."""
        return self._server.now() - instant

    # Methods that the transport calls.

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

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002
        return self._server.received  # one buffer for all connections: received bytes are parsed at once

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(memoryview(self._server.received)[:nbytes])

    def data_received(self, data: bytes | memoryview) -> None:
        """Read received bytes; only bodies of requests with accepted heads are kept."""
        if self._closed or self._refusal is not None:
            self._discard(len(data))
            self._server.reading_pace.note(self._transport, _NOBODY)
            return
        assert self._reader is not None
        try:
            self._reader.feed(data)
        except RequestError as error:
            self._refuse(error.response)
            return
        arriving = None if self._reader is None else self._reader.request
        if arriving is not None and len(arriving.body) > _LARGE_BODY:
            self._server.reading_pace.note(self._transport, arriving.client)
        if self.has_too_many_requests:
            last = self._waiting.pop().request
            self.hold(-last.held_bytes, last)
            self._refuse(Response(400, b"too many requests before earlier ones are answered\n", TEXT))

    def eof_received(self) -> bool:
        self._is_half_closed = True
        if self._closed or (self._task is None and not self._waiting):
            return False  # then the transport closes
        if self._may_chunk and not self._has_begun_stream:  # HTTP/1.0 has no interim responses
            self._outlet.write(_CONTINUE)
            self._server.loop.call_later(_RESET_SECONDS, self.abort_if_reset)
        return True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._closed = True
        self.deadline = None
        self._server.forget(self)
        self._waiting.clear()
        self._stop_reading()
        self._server.held_bytes -= self._held_bytes
        self._held_bytes = 0
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self.paused = True
        self.set_deadline()

    def resume_writing(self) -> None:
        self.paused = False
        self.set_deadline()
        if self.on_resume is not None:
            self.on_resume()

    # Methods that the request reader calls.

    @property
    def has_too_many_requests(self) -> bool:
        """Whether too many requests wait for the answers to earlier ones."""
        return len(self._waiting) > self._limits.max_pipelined

    def send_continue(self) -> None:
        """Tell a client that waits before it sends its body to go on, unless another answer is being sent."""
        if self._task is None:  # never in the middle of another answer
            self._outlet.write(_CONTINUE)

    def hold(self, num_bytes: int, request: Request) -> None:
        """Count ``num_bytes`` more as held for the body of a request of this connection."""
        request.held_bytes += num_bytes
        self._held_bytes += num_bytes
        self._server.held_bytes += num_bytes

    def take(self, request: Request, refusal: Response | None, *, keep_alive: bool, may_chunk: bool) -> None:
        """Answer a request in its turn, with ``refusal`` if it is given."""
        self._waiting.append(_Waiting(request, refusal, keep_alive, may_chunk))
        if self._task is None:
            self._answer_next()
        else:
            self.set_deadline()

    # Answers.

    def _answer_next(self) -> None:
        next_one = self._waiting.popleft()
        self._keep_alive, self._may_chunk = next_one.keep_alive, next_one.may_chunk
        self._has_begun_stream = False
        self._task = self._server.loop.create_task(self._answer(next_one.request, next_one.refusal))
        self.set_deadline()

    async def _answer(self, request: Request, refusal: Response | None) -> None:
        try:
            response = refusal or await self._server.app.handle(request)
        except Exception:
            self.abort()
            raise
        if response is not None:
            self._send(response, with_body=request.method != "HEAD")
        self._task = None
        if self._held_bytes:  # else the connection is lost, or there was no body
            self.hold(-request.held_bytes, request)
        if self._closed:
            return
        if not self._keep_alive or self._server.is_closing:
            self._close()
        elif self._waiting:
            self._answer_next()
        elif self._refusal is not None:
            self._refuse(self._refusal)
        elif self._is_half_closed:
            self._close()
        else:
            self.set_deadline()

    def _send(self, response: Response, *, with_body: bool = True) -> None:
        if self._closed:
            return
        close = not self._keep_alive or self._server.is_closing
        head = head_of(response.status, response.content_type, response.headers, len(response.body), close=close)
        self._outlet.write(head + response.body if with_body else head)

    def open_stream(self, headers: Mapping[str, str]) -> EventStream:
        """Begin the answer to the current request with status 200 and a stream of server-sent events."""
        if not self._may_chunk:
            self._keep_alive = False
        close = not self._keep_alive
        self._has_begun_stream = True
        head = head_of(200, EVENTS, {**EVENT_HEADERS, **headers}, None, close=close)
        return EventStream(self, head, chunked=not close)

    def write(self, data: bytes) -> None:
        """Send ``data`` as soon as possible; if the client is gone, nothing happens."""
        if not self._closed:
            self._outlet.write(data)

    # Deadlines and ends.

    def set_deadline(self) -> None:
        """Begin to wait for the client's next step: to read, to send the rest of a request, or to send another."""
        limits = self._limits
        if self.paused or self._closed:
            seconds = limits.write_timeout
        elif self._reader is not None and self._reader.is_in_body:
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
        """Handle the deadline: wait again for a client that reads, however slowly, and give up on others."""
        if self.paused or self._closed:
            if self._transport.get_write_buffer_size() < self._unread_bytes:
                self.set_deadline()
            else:
                self._transport.abort()
        elif self._is_receiving:
            self._refuse(Response(408, b"the request took too long to arrive\n", TEXT))
        else:
            self._close()

    def abort_if_reset(self) -> None:
        """End the connection if a client that had closed its half has closed all of it.

        The transport no longer reads, and so does not notice.
        """
        if self._is_half_closed and self._task is not None and not self._closed:
            info = self._transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
            if info[0] == _TCP_CLOSE:
                self.abort()

    def close_if_idle(self) -> None:
        """Close the connection unless a request is under way."""
        if self.is_idle:
            self._close()

    def abort(self) -> None:
        """Close the connection at once, even during a request."""
        self._transport.abort()

    def _refuse(self, response: Response) -> None:
        """Answer unreadable bytes with an error, after the current answers, and close.

        Bytes that the client still sends are dropped until it has seen the answer, because closing at once would make
        its system discard the answer (RFC 9112, section 9.6).
        """
        self._stop_reading()
        if self._task is not None:
            self._refusal = response
            return
        self._outlet.write(_closing(response))
        self._closed = True
        self.set_deadline()
        self._outlet.flush()
        self._transport.write_eof()

    def _stop_reading(self) -> None:
        """Stop reading, and drop the request that was arriving."""
        reader, self._reader = self._reader, None
        if reader is None:
            return
        reader.close()
        if reader.request is not None:
            self.hold(-reader.request.held_bytes, reader.request)
            reader.request.body.clear()

    def _discard(self, num_bytes: int) -> None:
        """Drop bytes that arrive after a refusal, up to a bound."""
        self._discarded_bytes += num_bytes
        if self._discarded_bytes > self._limits.max_body_bytes:
            self.abort()

    def _close(self) -> None:
        self._closed = True
        self._outlet.flush()
        self.set_deadline()  # for bytes that are still unread
        self._transport.close()


def _closing(response: Response) -> bytes:
    """The bytes of the last response of a connection."""
    head = head_of(response.status, response.content_type, response.headers, len(response.body), close=True)
    return head + response.body
