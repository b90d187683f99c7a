"""Bounds the memory that a body of JSON takes after decoding."""

from trtllm_lite.runtime.core import core

_OBJECT, _ARRAY, _HALF_STRING, _VALUE = 200, 100, 32, 40
"""Bytes in Python of an object of one field, a list of one entry, half a string's overhead, and a number in a list."""


def decoded_bytes(part: bytes | bytearray) -> int:
    """An upper bound of the bytes of a part of a body and of its decoded values.

    Every value is written with at least one of JSON's own characters. Characters inside strings count as well, so a
    text of many commas seems larger than it is.
    """
    num_objects, num_arrays, num_quotes, num_commas = core().count_bytes(part, '{[",')
    return 2 * len(part) + _OBJECT * num_objects + _ARRAY * num_arrays + _HALF_STRING * num_quotes + _VALUE * num_commas
