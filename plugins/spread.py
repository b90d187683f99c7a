"""The bits of words of 8-bit and 4-bit floating-point weights, moved so that a mask makes pairs of 16-bit elements.

``cuda/small_floats.cuh`` says how kernels read these words. A word of 32 bits is described by where the bits of its
elements lie, those of an element from the lowest on.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np

_WORD_BYTES, _BYTE_CODES = 4, 256


def _places_e4m3() -> list[list[int]]:
    """Elements 0 and 1 are where a bfloat16 has its sign and exponent; elements 2 and 3 have the remaining bits."""
    first = [[*range(4, 11), 15], [*range(20, 27), 31]]
    second = [[0, 1, 2, 3, 12, 13, 14, 11], [16, 17, 18, 19, 28, 29, 30, 27]]
    return first + second


def _places_e2m1() -> list[list[int]]:
    """Rotations by 0, 4 and 10 bring pairs 0 to 2 to bits 6, 7, 8 and 15 of both halves; two shifts bring pair 3."""
    rotated = [[(bit + half - by) % 32 for bit in (6, 7, 8, 15)] for by in (0, 4, 10) for half in (0, 16)]
    return [*rotated, [0, 1, 10, 9], [16, 17, 26, 25]]


_PLACES = {"spread_e4m3": _places_e4m3(), "spread_e2m1": _places_e2m1()}
LAYOUTS = tuple(_PLACES)


def spread(words: np.ndarray, layout: str) -> np.ndarray:
    """Move the bits of words, given as little-endian bytes [..., 4n], to their places in ``layout``."""
    return _moved(words, _tables(layout, inverse=False))


def gathered(words: np.ndarray, layout: str) -> np.ndarray:
    """The inverse of :func:`spread`."""
    return _moved(words, _tables(layout, inverse=True))


def _moved(words: np.ndarray, tables: Sequence[np.ndarray]) -> np.ndarray:
    split = np.ascontiguousarray(words).reshape(-1, _WORD_BYTES)
    moved = tables[0][split[:, 0]]
    for byte in range(1, _WORD_BYTES):
        moved |= tables[byte][split[:, byte]]
    return moved.view(np.uint8).reshape(words.shape)


@cache
def _tables(layout: str, *, inverse: bool) -> tuple[np.ndarray, ...]:
    """For each byte of a word and each value of it, the resulting bits."""
    targets = [place for element in _PLACES[layout] for place in element]
    if inverse:
        targets = [int(bit) for bit in np.argsort(targets)]
    codes = np.arange(_BYTE_CODES, dtype="<u4")
    tables = []
    for byte in range(_WORD_BYTES):
        table = np.zeros(_BYTE_CODES, "<u4")
        for bit, target in enumerate(targets[8 * byte : 8 * byte + 8]):
            table |= (codes >> bit & 1) << target
        tables.append(table)
    return tuple(tables)
