"""Waits for what other processes do."""

import time
from collections.abc import Callable
from typing import TypeVar

SECONDS = 120  # timeout of every wait
_BETWEEN = 0.02  # seconds between calls, in which the other processes have the CPU

T = TypeVar("T")


def first_of(ask: Callable[[], T | None]) -> T | None:
    """The first true result of ``ask``, which is called repeatedly, or None after ``SECONDS``."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if answer := ask():
            return answer
        time.sleep(_BETWEEN)
    return None
