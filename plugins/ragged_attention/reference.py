"""RaggedAttention in numpy, one sequence at a time."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np


def reference(inputs: Sequence[Any], attributes: Mapping[str, float]) -> tuple[np.ndarray, ...]:
    """``(qkv [tokens, 3 * heads * head_dim], cu_seqlens int32 [sequences + 1]) -> (y [tokens, heads * head_dim],)``."""
    qkv, cu_seqlens = inputs
    heads, head_dim = int(attributes["num_heads"]), int(attributes["head_dim"])
    parts = qkv.astype(np.float64).reshape(len(qkv), 3, heads, head_dim)
    y = np.zeros((len(qkv), heads, head_dim))
    for first, end in pairwise(cu_seqlens):
        query, key, value = parts[first:end].transpose(1, 2, 0, 3)
        scores = query @ key.swapaxes(1, 2) * attributes["scale"]
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        y[first:end] = (weights @ value / weights.sum(-1, keepdims=True)).swapaxes(0, 1)
    return (y.reshape(len(qkv), -1).astype(np.float32),)
