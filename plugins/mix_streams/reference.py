"""MixStreams in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def reference(inputs: Sequence[Any], attributes: Mapping[str, float]) -> tuple[np.ndarray, ...]:
    """``(x0 .. x4 [rows, hidden], router [4, hidden], weights [5, 4, 5], residual, scale) -> (y0 .. y3, scaled)``.

    ``x4``, ``residual`` [rows, hidden] and ``scale`` [hidden] may be None.
    """
    *streams, router, weights, residual, scale = inputs
    wide = [stream.astype(np.float64) for stream in streams if stream is not None]
    if residual is not None:
        wide[0] = wide[0] + residual
    length = np.sqrt(np.mean(wide[0] ** 2, axis=1, keepdims=True) + attributes["epsilon"])
    modalities = np.tanh((wide[0] / length) @ router.astype(np.float64).T)
    factors = weights[0] + np.einsum("rk,kji->rji", modalities, weights[1:].astype(np.float64))
    mixes = np.einsum("rji,irh->jrh", factors[:, :, : len(wide)], np.stack(wide))
    scaled = mixes[0] if scale is None else mixes[0] * scale
    return (*(mix.astype(np.float32) for mix in mixes), scaled.astype(np.float32))
