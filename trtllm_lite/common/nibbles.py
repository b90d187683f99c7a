"""Packs and unpacks elements of 4 bits: ml_dtypes has one per byte, files have two, the first in the low bits."""

import ml_dtypes
import numpy as np

TYPES = (np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.uint4), np.dtype(ml_dtypes.float4_e2m1fn))


def paired(array: np.ndarray) -> np.ndarray:
    """The elements of ``array`` [..., n] as bytes [..., n/2], if they have 4 bits; other arrays unchanged."""
    if array.dtype not in TYPES:
        return array
    bits = np.ascontiguousarray(array).view(np.uint8) & 0xF
    return bits[..., 0::2] | bits[..., 1::2] << 4


def unpaired(stored: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The inverse of :func:`paired`: ``stored`` as an array of ``dtype``, which may have any number of bits."""
    if dtype not in TYPES:
        return stored.view(dtype)
    bits = np.stack((stored & 0xF, stored >> 4), axis=-1).reshape(*stored.shape[:-1], -1)
    # ml_dtypes keeps the sign in all of the upper bits.
    return ((bits ^ 8) - 8).view(dtype) if dtype == TYPES[0] else bits.view(dtype)
