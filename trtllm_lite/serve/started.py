"""Records which generations were started for a request, for code that inspects them when the request ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from trtllm_lite.runtime.api.generation import Generation

_STARTED: ContextVar[list[Generation] | None] = ContextVar("started", default=None)


@contextmanager
def noting_started() -> Iterator[list[Generation]]:
    """The generations that are started inside ``with``, by this task and by threads that work for it."""
    started: list[Generation] = []
    token = _STARTED.set(started)
    try:
        yield started
    finally:
        _STARTED.reset(token)


def note_started(generation: Generation) -> None:
    """Record a generation that was started."""
    started = _STARTED.get()
    if started is not None:
        started.append(generation)
