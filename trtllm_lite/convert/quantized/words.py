"""Elements of 4 and 8 bits in integers of 32, the first in the low bits."""

import numpy as np
from numpy.typing import NDArray

WORD_BITS = 32


def unpacked(words: NDArray, bits: int) -> NDArray[np.uint8]:
    """The unsigned elements [..., n * 32 / bits] of the int32 ``words`` [..., n]."""
    stored = np.ascontiguousarray(words).view(np.uint8)
    return stored if bits == 8 else in_pairs(stored, axis=-1)


def in_pairs(stored: NDArray[np.uint8], axis: int) -> NDArray[np.uint8]:
    """The unsigned elements of 4 bits of each byte one behind the other along ``axis``, that of the low bits first."""
    at = axis % stored.ndim
    pairs = np.stack([stored & 15, stored >> 4], at + 1)
    return pairs.reshape(*stored.shape[:at], 2 * stored.shape[at], *stored.shape[at + 1 :])
