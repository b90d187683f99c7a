"""Exchanges one request and its answer by ASGI."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from trtllm_lite.serve.http.limits import HIGH_WATER
from trtllm_lite.serve.http.messages import EVENT_HEADERS, EVENTS, Response

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class AsgiExchange:
    """The connection of a request that came by ASGI; see ``messages.Exchange``."""

    def __init__(self, scope: Message, send: Send) -> None:
        loop = asyncio.get_running_loop()
        self.now = loop.time
        self.on_resume: Callable[[], None] | None = None
        self._peer = scope.get("client")
        self._with_body = scope["method"] != "HEAD"
        self._send = send
        self._lost: asyncio.Future[None] = loop.create_future()
        self._stream: AsgiStream | None = None

    @property
    def client(self) -> str:
        """The client's address, as the access log shows it."""
        return self._peer[0] if self._peer else "unix"

    @property
    def paused(self) -> bool:
        """Whether the client is so far behind in reading that writes should pause."""
        return self._stream is not None and self._stream.is_full

    def seconds_since(self, instant: float) -> float:
        """Seconds since an instant of the loop's clock."""
        return self.now() - instant

    def open_stream(self, headers: Mapping[str, str]) -> "AsgiStream":
        """Begin the answer with status 200 and a stream of server-sent events."""
        self._stream = AsgiStream(self._send, _start(200, EVENTS, {**EVENT_HEADERS, **headers}), self._resume)
        self._stream.sending.add_done_callback(self._note_sent)
        return self._stream

    async def answer(self, handling: Awaitable[Response | None], receive: Receive) -> None:
        """Send the answer of ``handling``, which is cancelled when the client goes away."""
        handled: asyncio.Future[Response | None] = asyncio.ensure_future(handling)
        watching = asyncio.create_task(self._watch(receive))
        try:
            await self._until(handled)
            if not self._lost.done():
                response = handled.result()
                if response is not None:
                    await self.send(response)
                elif self._stream is not None:
                    await self._until(self._stream.sending)
        finally:
            handled.cancel()
            watching.cancel()
            if self._stream is not None:
                self._stream.sending.cancel()
        if self._lost.done():
            self._lost.result()

    async def send(self, response: Response) -> None:
        """Send a complete response."""
        headers = {"content-length": str(len(response.body)), **response.headers}
        await self._send(_start(response.status, response.content_type, headers))
        await self._send({"type": "http.response.body", "body": response.body if self._with_body else b""})

    async def _until(self, future: asyncio.Future[Any]) -> None:
        """Wait for a future or task, or until the client is lost."""
        await asyncio.wait([future, self._lost], return_when=asyncio.FIRST_COMPLETED)

    async def _watch(self, receive: Receive) -> None:
        """Watch for the client going away."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._lose(None)

    def _note_sent(self, sending: asyncio.Task[None]) -> None:
        error = None if sending.cancelled() else sending.exception()
        if error is not None:
            self._lose(error)

    def _lose(self, error: BaseException | None) -> None:
        """Record that nothing more can be sent; the server is told of an error unless the client has only gone away."""
        if self._lost.done():
            return
        if error is None or isinstance(error, OSError):
            self._lost.set_result(None)
        else:
            self._lost.set_exception(error)

    def _resume(self) -> None:
        if self.on_resume is not None:
            self.on_resume()


class AsgiStream:
    """A response of server-sent events; a task sends whatever has been written since the last send."""

    def __init__(self, send: Send, start: Message, on_resume: Callable[[], None]) -> None:
        self._send = send
        self._on_resume = on_resume
        self._waiting = b""
        self._has_ended = False
        self._news = asyncio.Event()
        self.sending = asyncio.create_task(self._send_all(start))

    @property
    def is_full(self) -> bool:
        """Whether so much waits to be sent that writes should pause."""
        return len(self._waiting) > HIGH_WATER

    def write(self, events: bytes) -> None:
        """Send whole events, at least one."""
        self._waiting += events
        self._news.set()

    def end(self) -> None:
        """End the stream."""
        self._has_ended = True
        self._news.set()

    async def _send_all(self, start: Message) -> None:
        await self._send(start)
        more = True
        while more:
            await self._news.wait()
            self._news.clear()
            was_full, more = self.is_full, not self._has_ended
            data, self._waiting = self._waiting, b""
            await self._send({"type": "http.response.body", "body": data, "more_body": more})
            if was_full:
                self._on_resume()


def _start(status: int, content_type: bytes, headers: Mapping[str, str]) -> Message:
    given = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": [(b"content-type", content_type), *given]}
