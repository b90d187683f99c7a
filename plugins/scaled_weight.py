"""Weights with scales in numpy, for the references of the operators that take them."""

import numpy as np


def scaled(weight: np.ndarray, scale: np.ndarray | None, offset: np.ndarray | None) -> np.ndarray:
    """``weight`` [..., K] in float64; with scales (and offsets) [..., blocks] scale * weight + offset of each block."""
    wide = weight.astype(np.float64)
    for numbers, apply in ((scale, np.multiply), (offset, np.add)):
        if numbers is not None:
            blocks = wide.reshape(*numbers.shape, -1)
            wide = apply(blocks, numbers.astype(np.float64)[..., None]).reshape(weight.shape)
    return wide
