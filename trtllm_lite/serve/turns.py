"""Turns: what prepares requests runs in a few threads, by turns of the clients whom it is for."""

import asyncio
import contextvars
import ipaddress
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar

Value = TypeVar("Value")
LARGE_BODY = 64 << 10
"""Bytes; what is made of a smaller body takes some milliseconds at most."""
_NETWORK_BITS = 64  # of an IPv6 address: one client has all addresses of such a network
_SMALL_THREADS = 4
_GRAMMAR_THREADS = 8  # they wait for what compiles


class Lane:
    """Threads that work for clients in turn: first once for each client that waits, however much another asks for.

    What waits takes no thread. Its methods belong to the thread of the running event loop.
    """

    def __init__(self, name: str, num_threads: int) -> None:
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix=f"trtllm_lite {name}")
        self._num_free = num_threads
        self._waiting: dict[str, deque[tuple[asyncio.Future[Any], Callable[[], Any]]]] = {}  # in the order of turns

    async def run(self, client: str, work: Callable[[], Value]) -> Value:
        """The result of ``work``, which a thread does in the client's turn; not at all if this is cancelled before."""
        result: asyncio.Future[Value] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append((result, partial(contextvars.copy_context().run, work)))
        self._start()
        return await result

    def close(self) -> None:
        """Wait for what the threads do; they take no more."""
        self._waiting.clear()
        self._threads.shutdown()

    def _start(self) -> None:
        """Have free threads begin what is next."""
        while self._num_free and self._waiting:
            client = next(iter(self._waiting))
            queue = self._waiting.pop(client)
            result, work = queue.popleft()
            if queue:
                self._waiting[client] = queue  # behind the others
            if not result.done():
                self._num_free -= 1
                working = result.get_loop().run_in_executor(self._threads, work)
                working.add_done_callback(partial(self._end, result))

    def _end(self, result: "asyncio.Future[Any]", working: "asyncio.Future[Any]") -> None:
        """A thread is free, whether or not anybody still waits for what it has done."""
        self._num_free += 1
        error = working.exception()
        if not result.done():
            if error is None:
                result.set_result(working.result())
            else:
                result.set_exception(error)
        self._start()


class Lanes:
    """The lanes of a server.

    - ``small``: what is made of small bodies: rendering, tokenizing, writing answers
    - ``large``: the same of large ones, one at a time, as much of it keeps all other threads of Python waiting
    - ``grammars``: compiling, for which a request may wait for seconds
    """

    def __init__(self) -> None:
        self.small = Lane("small", _SMALL_THREADS)
        self.large = Lane("large", 1)
        self.grammars = Lane("grammars", _GRAMMAR_THREADS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for lane in (self.small, self.large, self.grammars):
            lane.close()


@dataclass(frozen=True, eq=False)
class Turn:
    """Whose turn the work of a request waits for, and in which lanes."""

    lanes: Lanes
    client: str
    is_large: bool

    async def prepare(self, work: Callable[[], Value]) -> Value:
        """The result of ``work``, which renders, tokenizes or writes."""
        lane = self.lanes.large if self.is_large else self.lanes.small
        return await lane.run(self.client, work)

    async def compile(self, work: Callable[[], Value]) -> Value:
        """The result of ``work``, which compiles grammars."""
        return await self.lanes.grammars.run(self.client, work)


TURN: contextvars.ContextVar[Turn] = contextvars.ContextVar("TURN")
"""The turn of the request that the current task answers."""


def network_of(address: str) -> str:
    """A client's address, or of IPv6 the network that it may choose its addresses from."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:  # a socket of the file system
        return address
    if found.version == 4 or found.ipv4_mapped is not None:
        return str(found)
    return str(ipaddress.ip_network((int(found), _NETWORK_BITS), strict=False))
