"""Listens, and keeps the connections."""

import asyncio
from collections.abc import Awaitable, Callable

from trtllm_lite.serve.http.connection import Connection
from trtllm_lite.serve.http.limits import HttpLimits
from trtllm_lite.serve.http.messages import Request, Response

_SWEEP_SECONDS = 1.0
_BACKLOG = 4096

Handler = Callable[[Request], Awaitable[Response | None]]
"""Answers a request, with a response or with events (``Connection.open_stream``); raises nothing but CancelledError."""


class HttpServer:
    """Answers requests with ``handler``, which is cancelled when the client of its request goes away.

    ``too_large`` makes the answer to a body of more than ``limits.max_body_bytes``, of which it is given the size.
    """

    def __init__(self, handler: Handler, too_large: Callable[[str], Response], limits: HttpLimits) -> None:
        self.handler = handler
        self.too_large = too_large
        self.limits = limits
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time
        self.is_closing = False
        """Whether connections end with the answers that are under way."""
        self._connections: set[Connection] = set()
        self._all_closed = asyncio.Event()
        self._listeners: list[asyncio.Server] = []
        self._sweeper = self.loop.call_later(_SWEEP_SECONDS, self._sweep)

    async def listen(self, host: str, port: int) -> int:
        """Listen at an address; returns the port, which the system chooses for port 0. Raises OSError."""
        server = await self.loop.create_server(lambda: Connection(self), host, port, backlog=_BACKLOG)
        self._listeners.append(server)
        return int(server.sockets[0].getsockname()[1])

    @property
    def num_connections(self) -> int:
        """Open connections."""
        return len(self._connections)

    def admit(self, connection: Connection) -> bool:
        """Take in a new connection, unless there are too many."""
        if len(self._connections) >= self.limits.max_connections:
            return False
        self._connections.add(connection)
        return True

    def forget(self, connection: Connection) -> None:
        """A connection is closed."""
        self._connections.discard(connection)
        if not self._connections:
            self._all_closed.set()

    async def close(self) -> None:
        """Take no more connections; end those that are idle now, and the others with the answer under way."""
        self.is_closing = True
        for server in self._listeners:
            server.close()
        for connection in list(self._connections):
            connection.close_if_idle()
        if self._connections:
            self._all_closed.clear()
            await self._all_closed.wait()
        self._sweeper.cancel()

    def abort(self) -> None:
        """End all connections at once."""
        for connection in list(self._connections):
            connection.abort()

    def _sweep(self) -> None:
        """End connections whose clients were waited for too long."""
        now = self.now()
        for connection in list(self._connections):
            if connection.deadline is not None and connection.deadline < now:
                connection.expire()
        self._sweeper = self.loop.call_later(_SWEEP_SECONDS, self._sweep)
