"""Arguments of ``ModelRunner.generate``, checked and spread over the requests of a batch."""

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np

from trtllm_lite.errors import ArgumentError


def per_request(name: str, value: Any, batch_size: int) -> list[Any]:
    """``value`` for each request: a list (or array) of that length, or one value for all.

    Raises ArgumentError if a list has another length.
    """
    if not isinstance(value, Sequence | np.ndarray) or isinstance(value, str):
        return [value] * batch_size
    if len(value) != batch_size:
        raise ArgumentError(
            f"{name} has {len(value)} values for {batch_size} prompts: expected one value, or one for each prompt"
        )
    return list(value)


def whole_number(name: str, value: Any, minimum: int, maximum: int) -> int:
    """``value`` as an int. Raises ArgumentError if it is not a whole number of the range."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not minimum <= int(value) <= maximum:
        raise ArgumentError(f"{name} is {value!r}: expected a whole number from {minimum} to {maximum}")
    return int(value)
