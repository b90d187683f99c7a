"""RaggedAttention in numpy, one sequence at a time."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np


def reference(inputs: Sequence[Any], attributes: Mapping[str, float]) -> tuple[np.ndarray, ...]:
    """``(qkv [tokens, 3 * heads * head_dim], cos, sin, cu_seqlens int32 [sequences + 1], distance_bias) -> (y,)``.

    y is [tokens, heads * head_dim].
    """
    qkv, cos, sin, cu_seqlens, bias = inputs
    heads, head_dim, window = (int(attributes[name]) for name in ("num_heads", "head_dim", "window"))
    parts = qkv.astype(np.float64).reshape(len(qkv), 3, heads, head_dim)
    if cos is not None:
        parts[:, :2] = _rotated(parts[:, :2], cos[:, None, None], sin[:, None, None])
    y = np.zeros((len(qkv), heads, head_dim))
    for first, end in pairwise(cu_seqlens):
        query, key, value = parts[first:end].transpose(1, 2, 0, 3)
        scores = query @ key.swapaxes(1, 2) * attributes["scale"]
        tokens = np.arange(end - first)
        distances = tokens[None, :] - tokens[:, None]
        if bias is not None:
            most = bias.shape[1] // 2
            scores += bias[:, np.clip(distances, -most, most) + most]
        if window:
            scores = np.where(abs(distances) <= window, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        y[first:end] = (weights @ value / weights.sum(-1, keepdims=True)).swapaxes(0, 1)
    return (y.reshape(len(qkv), heads * head_dim).astype(np.float32),)


def _rotated(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    half = cos.shape[-1]
    low, high, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin, rest], -1)
