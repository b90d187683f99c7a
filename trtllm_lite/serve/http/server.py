"""Listens for connections, and keeps track of them."""

import asyncio
import socket
import sys

from trtllm_lite.serve.http.connection import Connection
from trtllm_lite.serve.http.http_application import HttpApplication
from trtllm_lite.serve.http.limits import HttpLimits
from trtllm_lite.serve.http.outbox import Outbox
from trtllm_lite.serve.http.reading_pace import ReadingPace

_SWEEP_SECONDS = 1.0
_BACKLOG = 4096
_PAUSE_SECONDS = 0.1
_READ_BYTES = 64 << 10


class HttpServer:
    """Passes requests on to ``app``; an answer is cancelled when its client goes away."""

    def __init__(self, app: HttpApplication, limits: HttpLimits) -> None:
        self.app = app
        self.limits = limits
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time
        self.outbox = Outbox(self.loop)
        self.reading_pace = ReadingPace(self.loop)
        self.is_closing = False
        """Whether connections end after the current answers."""
        self.held_bytes = 0
        """An upper bound of the bytes of all bodies that arrive, or whose requests run."""
        self.received = bytearray(_READ_BYTES)
        """The buffer of bytes that a connection has just received."""
        self._connections: set[Connection] = set()
        self._all_closed = asyncio.Event()
        self._listeners: list[socket.socket] = []
        self._opening: set[asyncio.Task[object]] = set()
        self._sweeper = self.loop.call_later(_SWEEP_SECONDS, self._sweep)

    async def listen(self, host: str, port: int) -> int:
        """Listen at an address; returns the port, which the system chooses for port 0. Raises OSError."""
        found = await self.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
        listener.setblocking(False)
        self._listeners.append(listener)
        self.loop.add_reader(listener, self._accept, listener)
        return int(listener.getsockname()[1])

    @property
    def num_connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    def admit(self, connection: Connection) -> bool:
        """Add a new connection, unless there are too many."""
        if len(self._connections) >= self.limits.max_connections:
            return False
        self._connections.add(connection)
        return True

    def forget(self, connection: Connection) -> None:
        """Remove a closed connection."""
        self._connections.discard(connection)
        if not self._connections:
            self._all_closed.set()

    async def close(self) -> None:
        """Accept no more connections; end idle ones now, and others after the current answer."""
        self.is_closing = True
        while self._listeners:
            listener = self._listeners.pop()
            self.loop.remove_reader(listener)
            listener.close()
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

    def _accept(self, listener: socket.socket) -> None:
        """Accept all waiting connections: uvloop's own server accepts one per iteration, too few under load."""
        for _ in range(_BACKLOG):
            try:
                accepted, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # the client is gone already, or too many files are open
                print(f"a connection could not be taken: {error}", file=sys.stderr, flush=True)
                self.loop.remove_reader(listener)
                self.loop.call_later(_PAUSE_SECONDS, self._accept_again, listener)
                return
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = self.loop.create_task(self.loop.connect_accepted_socket(lambda: Connection(self), accepted))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    def _accept_again(self, listener: socket.socket) -> None:
        if not self.is_closing:
            self.loop.add_reader(listener, self._accept, listener)

    def _sweep(self) -> None:
        """End connections that have missed their deadlines."""
        now = self.now()
        for connection in list(self._connections):
            if connection.deadline is not None and connection.deadline < now:
                connection.expire()
            connection.abort_if_reset()
        self._sweeper = self.loop.call_later(_SWEEP_SECONDS, self._sweep)
