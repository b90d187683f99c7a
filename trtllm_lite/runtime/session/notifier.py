"""Wakes threads and coroutines that wait for the same event."""

import asyncio
import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

from trtllm_lite.runtime.core import core

if TYPE_CHECKING:
    from trtllm_lite.runtime.session.request_handle import RequestHandle


class WakeUps:
    """Functions that run in asyncio loops at the end of ``with``; each loop is woken once for all of its functions."""

    def __init__(self) -> None:
        self._functions: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = defaultdict(list)

    def add(self, loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
        """Call ``function`` in the thread of ``loop`` as well."""
        self._functions[loop].append(function)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for loop, functions in self._functions.items():
            with contextlib.suppress(RuntimeError):  # raised if the loop is closed
                loop.call_soon_threadsafe(_call_all, functions)


class Notifier:
    """A condition variable on which coroutines can wait as well.

    Changes of state on which conditions depend are made inside ``with notifier:``, followed by :meth:`notify`. In a
    fork of the process no thread changes the state: waiting there for a condition that does not hold yet raises
    EngineError.
    """

    def __init__(self) -> None:
        self._home = core().HomeProcess()
        self._condition = threading.Condition()
        self._futures: list[asyncio.Future[None]] = []

    def __enter__(self) -> None:
        self._condition.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._condition.__exit__(kind, error, tb)

    def notify(self, wake_ups: WakeUps, handles: "Sequence[RequestHandle]") -> None:  # noqa: ARG002 - for a Mailbox
        """Let all waiting threads, and with ``wake_ups`` coroutines, check their conditions again.

        ``handles`` are those whose state has changed. Call it inside ``with``.
        """
        self._condition.notify_all()
        futures, self._futures = self._futures, []
        for future in futures:
            wake_ups.add(future.get_loop(), partial(_resolve, future))

    def wait_until(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Block this thread until ``ready``; False after ``timeout`` seconds."""
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


class Mailbox(Notifier):
    """A notifier that also calls ``listen`` in an asyncio loop, with the handles that a step of the engine changed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, listen: "Callable[[Sequence[RequestHandle]], None]") -> None:
        super().__init__()
        self._loop = loop
        self._listen = listen

    def notify(self, wake_ups: WakeUps, handles: "Sequence[RequestHandle]") -> None:
        """Implements :meth:`Notifier.notify`, and has ``listen`` called with ``handles``."""
        super().notify(wake_ups, handles)
        wake_ups.add(self._loop, partial(self._listen, handles))


def _call_all(functions: Sequence[Callable[[], None]]) -> None:
    for function in functions:
        function()


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
