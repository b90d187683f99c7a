"""Unpacks elements of 2, 3, 4 and 8 bits from 32-bit words, the first in the low bits."""

import numpy as np
from numpy.typing import NDArray

WORD_BITS = 32


def unpacked(words: NDArray, bits: int) -> NDArray[np.uint8]:
    """The unsigned elements [..., n * 32 / bits] of the int32 ``words`` [..., n]; those of 3 bits may lie in two."""
    stored = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return stored
    if bits == 4:
        return in_pairs(stored, axis=-1)
    each = np.unpackbits(stored, axis=-1, bitorder="little").reshape(*stored.shape[:-1], -1, bits)
    return np.packbits(each, axis=-1, bitorder="little")[..., 0]


def in_pairs(stored: NDArray[np.uint8], axis: int) -> NDArray[np.uint8]:
    """The unsigned 4-bit elements of each byte, one after the other along ``axis``, low bits first."""
    at = axis % stored.ndim
    pairs = np.stack([stored & 15, stored >> 4], at + 1)
    return pairs.reshape(*stored.shape[:at], 2 * stored.shape[at], *stored.shape[at + 1 :])
