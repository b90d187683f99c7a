"""Turns: what prepares requests runs in a few threads, by turns of the clients whom it is for."""

import asyncio
import contextvars
import heapq
import ipaddress
import itertools
import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any, NamedTuple, Self, TypeVar

Value = TypeVar("Value")
MAX_QUICK_BYTES = 1536
"""A body of so many bytes has texts that are rendered and tokenized within a millisecond, mostly within a quarter of
one: handing them to another thread takes as long."""
_LARGE_BODY = 16 << 10  # bytes; a smaller body is rendered and tokenized in some milliseconds
_NETWORK_BITS = 64  # of an IPv6 address: one client has all addresses of such a network
_CORES = os.cpu_count() or 1
_SMALL_THREADS = min(max(_CORES, 2), 8)
_LARGE_THREADS = min(max(_CORES // 2, 1), 4)
_GRAMMAR_THREADS = 4
_LEAST_SECONDS = 1e-3  # that a turn counts for before it is known how long it takes


class _Job(NamedTuple):
    result: "asyncio.Future[Any]"
    work: Callable[[], Any]


class Lane:
    """Threads that work for clients in turn: next for the one for whom they have worked for the least time.

    So a client that asks for little is served as soon as a thread is free, whatever others ask for. What waits takes no
    thread. A client's time is a virtual one, as in start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): it
    goes on by the seconds that its work takes, and a client that comes begins where the one that was served last is.
    The methods belong to the thread of the running event loop.

    The threads are as urgent as all others: one that waited for a core with the interpreter's lock would hold up all.
    """

    def __init__(self, name: str, num_threads: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._threads = ThreadPoolExecutor(num_threads, f"trtllm_lite {name}")
        self._num_threads = num_threads
        self._num_working = 0
        self._clock = clock
        self._waiting: dict[str, deque[_Job]] = {}
        self._turns: list[tuple[float, int, str]] = []  # a heap with an entry for each client that waits
        self._count = itertools.count()
        self._times: dict[str, float] = {}
        self._time = 0.0

    async def run(self, client: str, work: Callable[[], Value]) -> Value:
        """The result of ``work``, which a thread does in the client's turn; not at all if this is cancelled before."""
        result: asyncio.Future[Value] = asyncio.get_running_loop().create_future()
        if client not in self._waiting:
            self._waiting[client] = deque()
            self._queue(client, max(self._times.get(client, 0.0), self._time))
        self._waiting[client].append(_Job(result, partial(contextvars.copy_context().run, work)))
        self._start()
        return await result

    def close(self) -> None:
        """Wait for what the threads do; they take no more."""
        self._waiting.clear()
        self._threads.shutdown()

    def _queue(self, client: str, at: float) -> None:
        heapq.heappush(self._turns, (at, next(self._count), client))

    def _start(self) -> None:
        """Have free threads begin what is next."""
        while self._num_working < self._num_threads and self._turns:
            at, _, client = heapq.heappop(self._turns)
            used = self._times.get(client, 0.0)
            if used > at:  # work of the client's has ended meanwhile
                self._queue(client, used)
                continue
            jobs = self._waiting[client]
            job = jobs.popleft()
            if jobs:
                self._queue(client, at + _LEAST_SECONDS)
            else:
                del self._waiting[client]
            if not job.result.done():
                self._time = at
                self._num_working += 1
                working = job.result.get_loop().run_in_executor(self._threads, self._timed, job.work)
                working.add_done_callback(partial(self._end, job.result, client, at))

    def _timed(self, work: Callable[[], Any]) -> "tuple[float, Any, BaseException | None]":
        """Seconds that work takes, what it gives, and the error that it ends with."""
        start = self._clock()
        try:
            value, error = work(), None
        except BaseException as raised:  # noqa: BLE001 - it is raised where the result is waited for
            value, error = None, raised
        return self._clock() - start, value, error

    def _end(self, result: "asyncio.Future[Any]", client: str, at: float, working: "asyncio.Future[Any]") -> None:
        """A thread is free, whether or not anybody still waits for what it has done."""
        self._num_working -= 1
        seconds, value, error = working.result()
        self._times[client] = max(self._times.get(client, 0.0), at) + seconds
        if not result.done():
            if error is None:
                result.set_result(value)
            else:
                result.set_exception(error)
        self._start()
        if not self._turns and not self._num_working:
            self._times.clear()  # nobody has waited for anybody
            self._time = 0.0


class Lanes:
    """The lanes of a server.

    - ``small``: what is made of small bodies: rendering, tokenizing, writing answers
    - ``large``: the same of large ones, by fewer threads, as it takes longer
    - ``grammars``: compiling, for which a request may wait for seconds
    """

    def __init__(self) -> None:
        self.small = Lane("small", _SMALL_THREADS)
        self.large = Lane("large", _LARGE_THREADS)
        self.grammars = Lane("grammars", _GRAMMAR_THREADS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for lane in (self.small, self.large, self.grammars):
            lane.close()


class Turn(NamedTuple):
    """Whose turn the work of a request waits for, and in which lanes."""

    lanes: Lanes
    client: str
    body_bytes: int

    async def prepare(self, work: Callable[[], Value]) -> Value:
        """The result of ``work``, which renders, tokenizes or writes."""
        lane = self.lanes.large if self.body_bytes > _LARGE_BODY else self.lanes.small
        return await lane.run(self.client, work)

    async def compile(self, work: Callable[[], Value]) -> Value:
        """The result of ``work``, which compiles grammars."""
        return await self.lanes.grammars.run(self.client, work)


TURN: contextvars.ContextVar[Turn] = contextvars.ContextVar("TURN")
"""The turn of the request that the current task answers."""


@lru_cache(maxsize=4096)
def network_of(address: str) -> str:
    """A client's address, or of IPv6 the network that it may choose its addresses from."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:  # a socket of the file system
        return address
    if found.version == 4 or found.ipv4_mapped is not None:
        return str(found)
    return str(ipaddress.ip_network((int(found), _NETWORK_BITS), strict=False))
