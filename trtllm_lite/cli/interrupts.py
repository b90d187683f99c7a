"""Lets Ctrl-C and SIGTERM end a command alike: incomplete files are removed, and one word tells what happened."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130  # the exit code that shells report for a process that Ctrl-C ended
TERMINATED = 143  # the exit code that shells report for a process that SIGTERM ended


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived."""


@contextmanager
def terminating() -> Iterator[None]:
    """Within the body SIGTERM raises :class:`Terminated`; only the main thread can arrange for that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise Terminated
