"""Spreads a load over processes, because one Python process can receive only so much."""

import asyncio
import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from trtllm_lite.bench.http_client.client import Client
from trtllm_lite.bench.http_client.load import Asked, Failure, Outcome, run_load
from trtllm_lite.bench.http_client.server import Server
from trtllm_lite.errors import DeviceError, LimitError, ServerError

_REPORT_SECONDS = 0.1
_HEAD_START_S = 0.05  # time between the announcement and the start, so that every process knows it
OnFinished = Callable[[int, int], None]  # number of requests that have ended, of how many


@dataclass(frozen=True)
class Share:
    """The task of one process: it warms up, and then sends ``asked``, at most ``concurrency`` outstanding at a time."""

    server: Server
    asked: Sequence[Asked]
    warm_up: Sequence[Asked]
    concurrency: int | None


@dataclass(frozen=True)
class Load:
    """The outcomes of all requests, in their order, and the CPU share of each client process.

    ``begin`` is the time, by ``perf_counter``, from which arrivals count.
    """

    outcomes: list[Outcome]
    begin: float
    cpu_shares: list[float]


def deal(
    server: Server, asked: Sequence[Asked], warm_up: Sequence[Asked], concurrency: int | None, num_processes: int
) -> list[Share]:
    """Deal the requests to processes in turn, and ``concurrency`` as evenly as possible.

    Raises LimitError if there are fewer requests, or a lower ``concurrency``, than processes.
    """
    for name, value in (("num_requests", len(asked)), ("concurrency", concurrency)):
        if value is not None and value < num_processes:
            raise LimitError(
                f"num_client_processes is {num_processes}, above {name} {value}, so that some would be idle: "
                f"lower it, or raise {name}"
            )
    return [
        Share(
            server,
            asked[number::num_processes],
            warm_up[number::num_processes],
            None if concurrency is None else len(range(number, concurrency, num_processes)),
        )
        for number in range(num_processes)
    ]


def run_processes(shares: Sequence[Share], on_finished: OnFinished | None = None) -> Load:
    """Run a process for each share; all begin at the same time, as all processes of a machine have the same clock.

    Raises ServerError if a request to warm up fails, DeviceError if a process ends early.
    """
    with ExitStack() as stack:
        ends = [stack.enter_context(_started(share)) for share in shares]
        for end in ends:
            failure = _receive(end)
            if failure is not None:
                raise ServerError(f"the server fails while it warms up: {failure.message}", failure.kind)
        begin = time.perf_counter() + _HEAD_START_S
        for end in ends:
            end.send(begin)
        total = sum(len(share.asked) for share in shares)
        results = _results(ends, lambda done: on_finished and on_finished(done, total))
    outcomes = sorted((outcome for part, _ in results for outcome in part), key=lambda outcome: outcome.row)
    return Load(outcomes, begin, [cpu_share for _, cpu_share in results])


def new_event_loop() -> asyncio.AbstractEventLoop:
    """The fastest installed event loop: uvloop's (from the extra serve), or Python's own."""
    if find_spec("uvloop") is None:
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()


class _started:  # noqa: N801 - used as a function in with
    """A process that works on a share until the ``with`` block ends; yields the parent's end of the pipe to it."""

    def __init__(self, share: Share) -> None:
        context = multiprocessing.get_context("spawn")
        self._end, other = context.Pipe()
        self._process: BaseProcess = context.Process(target=_work, args=(share, other), daemon=True)
        self._process.start()
        other.close()

    def __enter__(self) -> Connection:
        return self._end

    def __exit__(self, *error: object) -> None:
        self._end.close()
        self._process.terminate()
        self._process.join()


def _receive(end: Connection) -> Any:
    try:
        return end.recv()
    except (EOFError, ConnectionError) as error:
        raise DeviceError(
            "a client process ended early: free memory for it, or see what else ends processes of this machine"
        ) from error


def _results(ends: Sequence[Connection], report: Callable[[int], object]) -> list[tuple[list[Outcome], float]]:
    """The final results of the processes, which until then report the number of requests that have ended."""
    done = dict.fromkeys(ends, 0)
    results: dict[Connection, tuple[list[Outcome], float]] = {}
    while len(results) < len(ends):
        for ready in wait([end for end in ends if end not in results]):
            assert isinstance(ready, Connection)
            message = _receive(ready)
            if isinstance(message, int):
                done[ready] = message
                report(sum(done.values()))
            else:
                results[ready] = message
    return [results[end] for end in ends]


def _work(share: Share, end: Connection) -> None:
    """The main function of a process of :func:`run_processes`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets the signal as well, and ends this process
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_run_share(share, end))


async def _run_share(share: Share, end: Connection) -> None:
    client = Client(share.server)
    warm = await run_load(client, share.warm_up, 0.0, share.concurrency)
    end.send(next((outcome.result for outcome in warm if isinstance(outcome.result, Failure)), None))
    begin = end.recv()
    report = _Reporter(end)
    cpu_begin = time.process_time()
    outcomes = await run_load(client, share.asked, begin, share.concurrency, report.finished)
    cpu_share = (time.process_time() - cpu_begin) / (time.perf_counter() - begin)
    client.close()
    end.send((outcomes, cpu_share))


class _Reporter:
    """Reports to the parent how many requests have ended, at most as often as people can see."""

    def __init__(self, end: Connection) -> None:
        self._end, self._done, self._next_s = end, 0, 0.0

    def finished(self) -> None:
        """Count one more request that has ended."""
        self._done += 1
        if time.perf_counter() >= self._next_s:
            self._end.send(self._done)
            self._next_s = time.perf_counter() + _REPORT_SECONDS
