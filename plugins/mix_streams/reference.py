"""MixStreams in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def reference(inputs: Sequence[Any], attributes: Mapping[str, float]) -> tuple[np.ndarray, ...]:
    """``(x0 .. x4 [rows, hidden], router [4, hidden], weights [5, 4, 5]) -> (y0 .. y3 [rows, hidden])``.

    ``x4`` may be None.
    """
    *streams, router, weights = inputs
    first = streams[0].astype(np.float64)
    length = np.sqrt(np.mean(first**2, axis=1, keepdims=True) + attributes["epsilon"])
    modalities = np.tanh((first / length) @ router.astype(np.float64).T)
    factors = weights[0] + np.einsum("rk,kji->rji", modalities, weights[1:].astype(np.float64))
    given = [stream for stream in streams if stream is not None]
    mixes = np.einsum("rji,irh->jrh", factors[:, :, : len(given)], np.stack(given).astype(np.float64))
    return tuple(mix.astype(np.float32) for mix in mixes)
