"""How much memory a body of JSON may take once it is decoded."""

from trtllm_lite.runtime.core import core

_OBJECT, _ARRAY, _HALF_STRING, _VALUE = 200, 100, 32, 40
"""Bytes that Python takes for an object of one field and a list of one entry, for half a string beside its characters,
and for a number with its place in a list."""


def decoded_bytes(part: bytes | bytearray) -> int:
    """Bytes that a part of a body, and what is decoded of it, take at most.

    Every value is written with at least one of JSON's own characters. Those that stand in strings count, too: a text of
    many commas seems larger than it is.
    """
    num_objects, num_arrays, num_quotes, num_commas = core().count_bytes(part, '{[",')
    return 2 * len(part) + _OBJECT * num_objects + _ARRAY * num_arrays + _HALF_STRING * num_quotes + _VALUE * num_commas
