"""Connections of the HTTP server without sockets: a transport keeps what is written, and the test moves the clock."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from trtllm_lite.serve.http.connection import Connection
from trtllm_lite.serve.http.limits import HttpLimits
from trtllm_lite.serve.http.messages import TEXT, Request, Response
from trtllm_lite.serve.http.server import HttpServer

Handler = Callable[[Request], Awaitable[Response | None]]

_MAX_TURNS = 1000  # turns of the loop after which a condition counts as never met


@dataclass
class Transport:
    """What a connection has done with its transport."""

    written: bytes = b""
    calls: list[str] = field(default_factory=list)
    tcp_state: int = 1  # established
    unread: int = 1
    """Bytes that the client has not read; above 0, so that the server sends only by write."""
    is_paused: bool = False
    """Whether reading is paused."""

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def write(self, data: bytes) -> None:
        assert "close" not in self.calls
        self.written += data

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def get_extra_info(self, name: str) -> object:
        return {"peername": ("client", 1), "socket": self}[name]

    def fileno(self) -> int:
        return -1

    def getsockopt(self, *_: int) -> bytes:
        return bytes([self.tcp_state])

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return "close" in self.calls or "abort" in self.calls

    def write_eof(self) -> None:
        self.calls.append("write_eof")

    def close(self) -> None:
        self.calls.append("close")

    def abort(self) -> None:
        self.calls.append("abort")


@dataclass(frozen=True)
class Answers:
    """An application made of two functions."""

    handle: Handler
    check_head: Callable[[Request], Response | None] = lambda _: None

    def too_large(self, size: str, most: int, _: Request) -> Response:
        return Response(413, f"{size} bytes are more than {most}".encode(), TEXT)


class Wire:
    """A server, and connections to it; ``now`` is its clock."""

    def __init__(self, handler: Handler, limits: HttpLimits, **options: Any) -> None:
        self.server = HttpServer(Answers(handler, **options), limits)
        self.now = 1000.0
        self.server.now = lambda: self.now

    def connect(self) -> tuple[Connection, Transport]:
        """A new connection."""
        connection, transport = Connection(self.server), Transport()
        connection.connection_made(transport)
        return connection, transport

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and have the server look for clients that were too slow."""
        self.now += seconds
        self.server._sweeper.cancel()
        self.server._sweep()


async def echo(request: Request) -> Response:
    """A response that repeats the request."""
    words = (request.method, request.path, request.query, request.headers.get("x-word", ""), request.body.decode())
    return Response(200, "|".join(words).encode(), TEXT)


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until a condition holds, and once more, so that what was written then is sent."""
    for _ in range(_MAX_TURNS):
        if condition():
            await asyncio.sleep(0)
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition never came to hold")


def on_wire(
    scenario: Callable[[Wire], Awaitable[None]],
    *,
    handler: Handler = echo,
    limits: HttpLimits | None = None,
    **options: Any,
) -> None:
    """Run a scenario on a new server."""

    async def run() -> None:
        await scenario(Wire(handler, limits or HttpLimits(), **options))

    asyncio.run(run())


def bodies(written: bytes) -> list[bytes]:
    """The bodies of responses with a length, which stand one after another."""
    found = []
    while written:
        head, _, written = written.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        found.append(written[:length])
        written = written[length:]
    return found
