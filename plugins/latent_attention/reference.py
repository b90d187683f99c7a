"""LatentAttention in numpy, one token at a time. Computes keys and values from latents, as in training."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def reference(inputs: Sequence[Any], attributes: Mapping[str, float]) -> tuple[np.ndarray, ...]:
    """Inputs as in ``schema.toml`` -> ``(y, rotary_cache_out, latent_cache_out)``; inputs are not changed."""
    query, latent, norm, cos, sin, key_up, value_up, rotary_cache, latent_cache, cu_seqlens, past_lens, tables = inputs
    rotary_cache, latent_cache = rotary_cache.copy(), latent_cache.copy()
    num_heads, plain_dim, latent_dim = key_up.shape
    block_size = rotary_cache.shape[2]
    tables = tables.reshape(len(past_lens), -1, tables.shape[1])[:, int(attributes["cache_group"])]
    plain, rotated = np.split(query.astype(np.float64), [num_heads * plain_dim], axis=1)
    plain, rotated = plain.reshape(len(query), num_heads, plain_dim), rotated.reshape(len(query), num_heads, -1)
    rotated = _rotate(rotated, cos, sin)
    latents, keys = np.split(latent.astype(np.float64), [latent_dim], axis=1)
    latents = latents / np.sqrt((latents**2).mean(1, keepdims=True) + attributes["norm_epsilon"]) * norm
    keys = _rotate(keys[:, None], cos, sin)[:, 0]
    y = np.zeros((len(query), num_heads, value_up.shape[1]))
    for sequence, past in enumerate(past_lens):
        rows = range(cu_seqlens[sequence], cu_seqlens[sequence + 1])
        for position, row in enumerate(rows, start=past):
            at = (tables[sequence, position // block_size], 0, position % block_size)
            rotary_cache[at], latent_cache[at] = keys[row], latents[row]
            blocks = tables[sequence, : position // block_size + 1]
            seen = [cache[blocks].astype(np.float64) for cache in (rotary_cache, latent_cache)]
            of_keys, of_latents = (part.reshape(-1, part.shape[-1])[: position + 1] for part in seen)
            plain_keys = np.einsum("hpl,tl->htp", key_up.astype(np.float64), of_latents)
            values = np.einsum("hvl,tl->htv", value_up.astype(np.float64), of_latents)
            scores = np.einsum("hp,htp->ht", plain[row], plain_keys) + rotated[row] @ of_keys.T
            powers = np.exp(attributes["scale"] * (scores - scores.max(1, keepdims=True)))
            y[row] = np.einsum("ht,htv->hv", powers / powers.sum(1, keepdims=True), values)
    return y.reshape(len(query), -1).astype(np.float32), rotary_cache, latent_cache


def _rotate(heads: NDArray, cos: NDArray, sin: NDArray) -> NDArray:
    """RoPE of ``heads [tokens, heads, dim]``, pairing element i with element i + half."""
    low, high = np.split(heads, 2, axis=-1)
    cos, sin = cos[:, None], sin[:, None]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)
