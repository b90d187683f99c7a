"""How much memory a body of JSON may take once it is decoded."""

_WORST = ((b"{", 200), (b"[", 100), (b'"', 32), (b",", 40))
"""Bytes that Python takes for an object of one field and a list of one entry, for half a string beside its characters,
and for a number with its place in a list. Each of them is written with at least one of these characters."""


def decoded_bytes(body: bytes | bytearray) -> int:
    """Bytes that ``body`` and what is decoded of it take at most.

    Characters that stand in strings count as if they were JSON's own: a text of many commas seems larger than it is.
    """
    return 2 * len(body) + sum(cost * body.count(character) for character, cost in _WORST)
