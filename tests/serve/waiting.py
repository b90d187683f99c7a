"""Waits for what other processes do."""

import time
from collections.abc import Callable
from typing import TypeVar

SECONDS = 120  # timeout of every wait
_BETWEEN = 0.02  # seconds between questions, in which those who are asked have the processor

T = TypeVar("T")


def first_of(ask: Callable[[], T | None]) -> T | None:
    """The first true answer to a question that is asked again and again, or None after ``SECONDS``."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if answer := ask():
            return answer
        time.sleep(_BETWEEN)
    return None
