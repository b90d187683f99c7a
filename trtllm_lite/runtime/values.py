"""Checks values that users pass."""

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np

from trtllm_lite.errors import ArgumentError, LimitError, shown


def is_list(value: Any) -> bool:
    """Whether ``value`` is a list, tuple or array, but not a string: it has a length and can be read twice."""
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def is_whole_number(value: Any) -> bool:
    """Whether ``value`` is an integer of any type but bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_unicode(text: str) -> bool:
    """Whether ``text`` can be encoded as UTF-8, which lone surrogates prevent."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def whole_number(name: str, value: Any, minimum: int, maximum: int) -> int:
    """``value`` as an int. Raises ArgumentError unless it is a whole number in the range."""
    if not is_whole_number(value) or not minimum <= int(value) <= maximum:
        raise ArgumentError(f"{name} is {shown(value)}: expected a whole number from {minimum} to {maximum}")
    return int(value)


def check_positive(name: str, value: Any) -> None:
    """Raise ArgumentError unless ``value`` is a whole number above 0, or None."""
    if value is not None and (not is_whole_number(value) or value < 1):
        raise ArgumentError(f"{name} is {shown(value)}: expected a whole number above 0")


def check_flag(name: str, value: Any) -> None:
    """Raise ArgumentError unless ``value`` is True or False."""
    if not isinstance(value, bool):
        raise ArgumentError(f"{name} is {shown(value)}: expected True or False")


def check_text(name: str, value: Any, expected: str, kinds: Any) -> None:
    """Raise ArgumentError unless ``value`` is of ``kinds`` and, if not None, a non-empty text without NUL."""
    if not isinstance(value, kinds) or (value is not None and not str(value)) or "\0" in str(value):
        raise ArgumentError(f"{name} is {shown(value)}: expected {expected}")


def check_list(name: str, value: Any, most: int, expected: str) -> None:
    """Raise ArgumentError unless ``value`` is a list, LimitError if it has more than ``most`` entries."""
    if not is_list(value):
        raise ArgumentError(f"{name} is {shown(value)}: expected {expected}")
    check_length(name, len(value), most, "entries")


def check_length(name: str, length: int, most: int, unit: str) -> None:
    """Raise LimitError if ``name`` has more than ``most`` entries, characters or other units."""
    if length > most:
        raise LimitError(f"{name} has {length:,} {unit}, which exceeds {most:,}: pass fewer")


def per_request(name: str, value: Any, batch_size: int) -> list[Any]:
    """A list with a value for each of ``batch_size`` requests: the entries of ``value``, or ``value`` itself for all.

    Raises ArgumentError if ``value`` is a list of another length.
    """
    if not is_list(value):
        return [value] * batch_size
    if len(value) != batch_size:
        raise ArgumentError(
            f"{name} has {len(value)} values for {batch_size} prompts: expected one value, or one for each prompt"
        )
    return list(value)
