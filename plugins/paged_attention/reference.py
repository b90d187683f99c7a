"""PagedAttention in numpy, one sequence and one query head at a time."""

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

_LARGEST = {"int8": (-128, 127), "float8_e4m3fn": (-448, 448)}


def _norm(heads: np.ndarray, weight: np.ndarray | None, epsilon: float) -> np.ndarray:
    """RMS norm over the last axis; without a weight, ``heads`` as they are."""
    if weight is None:
        return heads
    return heads / np.sqrt(np.mean(heads**2, axis=-1, keepdims=True) + epsilon) * weight


def _rotate(heads: np.ndarray, cos: np.ndarray | None, sin: np.ndarray | None) -> np.ndarray:
    """RoPE of ``heads [tokens, heads, dim]``, pairing element i with element i + half; the others stay."""
    if cos is None or sin is None:
        return heads
    half = cos.shape[1]
    low, high, rest = np.split(heads, [half, 2 * half], axis=-1)
    cos, sin = cos[:, None], sin[:, None]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin, rest], axis=-1)


def _attend(
    query: np.ndarray, keys: np.ndarray, values: np.ndarray, scale: float, softcap: float, first: int, sink: float
) -> np.ndarray:
    """Softmax attention of one query [dim] over positions ``first ..`` of keys and values [positions, dim].

    ``sink`` is the score of one more key, whose value is zero; minus infinity if there is none.
    """
    scores = keys[first:] @ query * scale
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    largest = max(scores.max(), sink)
    weights = np.exp(scores - largest)
    return weights @ values[first:] / (weights.sum() + np.exp(sink - largest))


def _stored(heads: np.ndarray, dtype: np.dtype, scale: float) -> np.ndarray:
    """Round ``heads`` to the cache's ``dtype``; 8-bit types are rounded as float32 arithmetic does."""
    if dtype.name not in _LARGEST:
        return heads
    scaled = np.clip(heads.astype(np.float32) / np.float32(scale), *_LARGEST[dtype.name])
    return np.rint(scaled).astype(dtype) if dtype == np.int8 else scaled.astype(ml_dtypes.float8_e4m3fn)


def _read(cache: np.ndarray, scale: float) -> np.ndarray:
    """Convert the elements of a cache to float64, 8-bit ones times ``scale``."""
    if cache.dtype.name not in _LARGEST:
        return cache.astype(np.float64)
    return (cache.astype(np.float32) * np.float32(scale)).astype(np.float64)


def reference(inputs: Sequence[Any], attributes: Mapping[str, float]) -> tuple[np.ndarray, ...]:
    """Inputs as in ``schema.toml`` -> ``(y, key_cache_out, value_cache_out, stored)``; inputs are not changed."""
    qkv, cos, sin, key_cache, value_cache, cu_seqlens, past_lens, block_tables, *norms_and_sinks = inputs
    query_norm, key_norm, value_norm, sinks = norms_and_sinks
    key_cache, value_cache = key_cache.copy(), value_cache.copy()
    _, num_kv_heads, head_dim, block_size = key_cache.shape
    num_heads, epsilon, window = int(attributes["num_heads"]), attributes["norm_epsilon"], int(attributes["window"])
    start, floor_scale = int(attributes["first_position"]), int(attributes["floor_scale"])
    scale, softcap, group = attributes["scale"], attributes["softcap"], num_heads // num_kv_heads
    key_scale, value_scale = attributes["key_scale"], attributes["value_scale"]
    tables = block_tables.reshape(len(past_lens), -1, block_tables.shape[1])[:, int(attributes["cache_group"])]

    heads = qkv.astype(np.float64).reshape(len(qkv), -1, head_dim)
    queries, keys, new_values = np.split(heads, [num_heads, num_heads + num_kv_heads], axis=1)
    new_values = _norm(new_values, value_norm, epsilon)
    if attributes["norm_after_rope"]:
        queries, new_keys = (
            _norm(_rotate(part, cos, sin), norm, epsilon) for part, norm in ((queries, query_norm), (keys, key_norm))
        )
    else:
        queries, new_keys = (
            _rotate(_norm(part, norm, epsilon), cos, sin) for part, norm in ((queries, query_norm), (keys, key_norm))
        )

    y = np.zeros(queries.shape)
    for sequence, past in enumerate(past_lens):
        rows = range(cu_seqlens[sequence], cu_seqlens[sequence + 1])
        for position, row in enumerate(rows if attributes["appends"] else (), start=past):
            block, slot = tables[sequence, position // block_size], position % block_size
            key_cache[block, :, :, slot] = _stored(new_keys[row], key_cache.dtype, key_scale)
            value_cache[block, :, slot] = _stored(new_values[row], value_cache.dtype, value_scale)
        length = past + len(rows)
        blocks = tables[sequence, : -(-length // block_size)]
        # [heads, positions, dim]
        all_keys = _read(key_cache[blocks], key_scale).transpose(1, 0, 3, 2).reshape(num_kv_heads, -1, head_dim)
        all_values = _read(value_cache[blocks], value_scale).transpose(1, 0, 2, 3).reshape(num_kv_heads, -1, head_dim)
        for position, row in enumerate(rows, start=past):
            of_window = position - position % window if attributes["chunked"] and window else position - window + 1
            first = max(min(start, position), of_window if window else 0)
            counted = position + int(attributes["floor_offset"])
            raised = np.log1p(counted // floor_scale) * attributes["attn_scale"] if floor_scale else 0
            for head in range(num_heads):
                sink = -np.inf if sinks is None else float(sinks[head])
                kv = (head // group, slice(position + 1))
                query = queries[row, head] * (1 + raised)
                y[row, head] = _attend(query, all_keys[kv], all_values[kv], scale, softcap, first, sink)
    stored = np.concatenate([new_keys, new_values], axis=1).reshape(len(qkv), -1)
    return y.reshape(len(qkv), -1).astype(np.float32), key_cache, value_cache, stored.astype(np.float32)
