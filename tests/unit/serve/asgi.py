"""Calls ASGI applications as an ASGI server does, without sockets."""

import asyncio
from collections.abc import Callable
from typing import Any

from trtllm_lite.serve.http.asgi import AsgiServer

_SECONDS = 60  # after which an application that sends nothing is taken to hang


class Call:
    """A request to an application. The test decides what arrives of it, and when its client reads."""

    def __init__(self, app: AsgiServer, method: str = "GET", path: str = "/", **scope: Any) -> None:
        self.sent: list[dict[str, Any]] = []
        """Messages that the application has sent."""
        self.reads = asyncio.Event()
        """Whether the client takes messages."""
        self.reads.set()
        self.error: OSError | None = None
        """The error that sending raises, if any."""
        self._news = asyncio.Event()
        self._coming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        whole = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": [], **scope}
        self.task = asyncio.create_task(app(whole, self._coming.get, self._send))

    def body(self, data: bytes, *, more: bool = False) -> None:
        """A part of the request's body arrives."""
        self._coming.put_nowait({"type": "http.request", "body": data, "more_body": more})

    def leave(self) -> None:
        """The client goes away."""
        self._coming.put_nowait({"type": "http.disconnect"})

    @property
    def status(self) -> int:
        """The response's status."""
        return self.sent[0]["status"]

    @property
    def headers(self) -> dict[bytes, bytes]:
        """The response's headers."""
        return dict(self.sent[0]["headers"])

    @property
    def received(self) -> bytes:
        """The response's body, as far as it was sent."""
        return b"".join(message["body"] for message in self.sent[1:])

    async def until(self, condition: Callable[["Call"], bool]) -> None:
        """Wait until what was sent fulfils a condition."""
        async with asyncio.timeout(_SECONDS):
            while not condition(self):
                self._news.clear()
                await self._news.wait()

    async def _send(self, message: dict[str, Any]) -> None:
        await self.reads.wait()
        if self.error is not None:
            raise self.error
        self.sent.append(message)
        self._news.set()
