"""Prepares requests in a few threads, in turns between clients."""

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
"""Bytes of a body that is rendered and tokenized about as quickly as it is handed to another thread: within 1 ms."""
_LARGE_BODY = 16 << 10  # bytes; a smaller body is rendered and tokenized in some milliseconds
_NETWORK_BITS = 64  # bits of the network in an IPv6 address: a client has all addresses of its network
_CORES = os.cpu_count() or 1
_SMALL_THREADS = min(max(_CORES, 2), 8)
_LARGE_THREADS = min(max(_CORES // 2, 1), 4)
_GRAMMAR_THREADS = 4
_LEAST_SECONDS = 1e-3  # time that a turn is charged before its duration is known


class _Job(NamedTuple):
    result: "asyncio.Future[Any]"
    work: Callable[[], Any]


class Lane:
    """Threads that work for clients in turn: next for the client that they have worked for least.

    A client with little work is therefore served as soon as a thread is free, whatever others ask for. Waiting work
    takes no thread. Clients have virtual times, as in start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): a
    client's time advances by the seconds of its work, and a new client begins at the time of the client that was served
    last. The methods belong to the thread of the running event loop.

    The threads have normal priority: a thread of low priority that waited for a core while holding the interpreter's
    lock would delay all others.
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
        """The result of ``work``, which a thread does in the client's turn, unless the caller is cancelled before."""
        result: asyncio.Future[Value] = asyncio.get_running_loop().create_future()
        if client not in self._waiting:
            self._waiting[client] = deque()
            self._queue(client, max(self._times.get(client, 0.0), self._time))
        self._waiting[client].append(_Job(result, partial(contextvars.copy_context().run, work)))
        self._start()
        return await result

    def close(self) -> None:
        """Wait for running work; the threads start no more."""
        self._waiting.clear()
        self._threads.shutdown()

    def _queue(self, client: str, at: float) -> None:
        heapq.heappush(self._turns, (at, next(self._count), client))

    def _start(self) -> None:
        """Start waiting work on free threads."""
        while self._num_working < self._num_threads and self._turns:
            at, _, client = heapq.heappop(self._turns)
            used = self._times.get(client, 0.0)
            if used > at:  # other work of the client has ended meanwhile
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
        """The seconds that work takes, its result, and its error."""
        start = self._clock()
        try:
            value, error = work(), None
        except BaseException as raised:  # noqa: BLE001 - raised to whoever waits for the result
            value, error = None, raised
        return self._clock() - start, value, error

    def _end(self, result: "asyncio.Future[Any]", client: str, at: float, working: "asyncio.Future[Any]") -> None:
        """Note that a thread is free, whether or not anybody still waits for its result."""
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
            self._times.clear()  # no client waits, so all virtual times can be reset
            self._time = 0.0


class Lanes:
    """The lanes of a server.

    - ``small``: rendering, tokenizing and writing answers for requests of small bodies
    - ``large``: the same work for requests of large bodies, which takes longer, by fewer threads
    - ``grammars``: compiling grammars, for which a request may wait for seconds
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
    """The client in whose turn a request's work runs, and the lanes for it."""

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
    """A client's address, or the network of an IPv6 address, within which a client may choose addresses."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:  # a Unix socket
        return address
    if found.version == 4 or found.ipv4_mapped is not None:
        return str(found)
    return str(ipaddress.ip_network((int(found), _NETWORK_BITS), strict=False))
