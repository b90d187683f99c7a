"""Pooling in numpy."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np


def reference(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """``(x [tokens, hidden], cu_seqlens int32 [sequences + 1]) -> (y [sequences, hidden],)``."""
    x, cu_seqlens = inputs
    ranges = list(pairwise(cu_seqlens))
    wide = x.astype(np.float64)
    takes_mean = attributes["mode"] == "mean"
    y = np.stack([wide[first:end].mean(0) if takes_mean else wide[first] for first, end in ranges])
    if attributes["normalization"] == "l2":
        norms = np.linalg.norm(y, axis=1, keepdims=True)
        y = np.divide(y, norms, out=np.zeros_like(y), where=norms > 0)
    return (y.astype(np.float32),)
