"""GatedDeltaRule in numpy, one token at a time."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trtllm_lite.plugins.columns import columns
from trtllm_lite.plugins.replay import Replay, ReplayState
from trtllm_lite.plugins.state_spans import state_spans


def reference(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """Inputs as in ``schema.toml`` -> ``(y, recurrent_state_out)``; inputs are not changed."""
    qkv, *rows, a_log, dt_bias, states, cu_seqlens, past_lens, block_tables = inputs
    a = columns(rows[0], attributes["a_first"], len(dt_bias))
    b = columns(rows[1], attributes["b_first"], len(a_log))
    layout = ReplayState.of(attributes, states.dtype.name)
    heads, key_heads, key_dim, value_dim = (
        len(a_log),
        int(attributes["num_key_heads"]),
        layout.key_dim,
        layout.value_dim,
    )
    queries, keys, values = np.split(qkv.astype(np.float64), np.cumsum([key_heads * key_dim] * 2), axis=1)
    queries, keys = (
        _normalised(part.reshape(-1, key_heads, key_dim), attributes["norm_epsilon"]).repeat(heads // key_heads, axis=1)
        for part in (queries, keys)
    )
    queries, values = queries * attributes["scale"], values.reshape(-1, heads, value_dim)
    speed = np.exp(a_log.astype(np.float64))[:, None]
    decay = -speed * np.logaddexp(0, a.astype(np.float64) + dt_bias).reshape(len(a), heads, -1)
    beta = np.exp(-np.logaddexp(0, -b.astype(np.float64)))
    y, updated = np.zeros(values.shape), states.copy()
    for span in state_spans(cu_seqlens, past_lens, block_tables, attributes):
        replay = Replay(layout, updated[span.block], span)
        for row in range(span.rows.start, span.rows.stop):
            matrix = replay.matrix * np.exp(decay[row])[:, :, None]
            update = beta[row, :, None] * (values[row] - np.einsum("hkv,hk->hv", matrix, keys[row]))
            replay.add(keys[row], update, decay[row])
            y[row] = np.einsum("hkv,hk->hv", replay.matrix, queries[row])
        replay.store()
    return y.reshape(len(qkv), -1).astype(np.float32), updated


def _normalised(heads: np.ndarray, epsilon: float) -> np.ndarray:
    return heads / np.sqrt((heads**2).sum(-1, keepdims=True) + epsilon)
