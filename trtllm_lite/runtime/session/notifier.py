"""Wakes threads and coroutines that wait for the same thing."""

import asyncio
import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from trtllm_lite.runtime.core import core


class WakeUps:
    """Coroutines that are woken when ``with`` ends, by one call for each asyncio loop that they run in."""

    def __init__(self) -> None:
        self._futures: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = defaultdict(list)

    def add(self, futures: Iterable["asyncio.Future[None]"]) -> None:
        """Wake the coroutines that await ``futures``, too."""
        for future in futures:
            self._futures[future.get_loop()].append(future)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for loop, futures in self._futures.items():
            with contextlib.suppress(RuntimeError):  # raised if the loop is closed
                loop.call_soon_threadsafe(_resolve, futures)


class Notifier:
    """A condition variable on which coroutines can wait, too.

    State that the conditions depend on is changed inside ``with notifier:``, followed by :meth:`notify`. In a fork of
    the process no thread changes the state: waiting there for a condition that does not hold yet raises EngineError.
    """

    def __init__(self) -> None:
        self._home = core().HomeProcess()
        self._condition = threading.Condition()
        self._futures: list[asyncio.Future[None]] = []

    def __enter__(self) -> None:
        self._condition.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._condition.__exit__(kind, error, tb)

    def notify(self, wake_ups: WakeUps) -> None:
        """Let all waiting threads, and with ``wake_ups`` coroutines, check their conditions again.

        Call it inside ``with``.
        """
        self._condition.notify_all()
        futures, self._futures = self._futures, []
        wake_ups.add(futures)

    def wait_until(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Block this thread until ``ready``; False if ``timeout`` seconds have passed before."""
        if self._is_ready_in_fork(ready):
            return True
        with self._condition:
            return self._condition.wait_for(ready, timeout)

    async def until(self, ready: Callable[[], bool]) -> None:
        """Suspend this coroutine until ``ready``."""
        if self._is_ready_in_fork(ready):
            return
        while True:
            with self._condition:
                if ready():
                    return
                future = asyncio.get_running_loop().create_future()
                self._futures.append(future)
            await future

    def _is_ready_in_fork(self, ready: Callable[[], bool]) -> bool:
        """Whether this is a fork of the process and ``ready`` holds, without the lock, whose copy may stay locked.

        Raises EngineError in a fork where ``ready`` does not hold: no thread there would change that.
        """
        if self._home.is_this():
            return False
        if not ready():
            self._home.check()
        return True


def _resolve(futures: "list[asyncio.Future[None]]") -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
