"""GatedDeltaRule in numpy, one token at a time."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trtllm_lite.plugins.state_spans import state_spans


def reference(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """Inputs as in ``schema.toml`` -> ``(y, recurrent_state_out)``; inputs are not changed."""
    qkv, a, b, a_log, dt_bias, states, cu_seqlens, past_lens, block_tables = inputs
    _, value_heads, key_dim, value_dim = states.shape
    num_key_heads = int(attributes["num_key_heads"])
    ends = np.cumsum([num_key_heads * key_dim] * 2)
    queries, keys, values = np.split(qkv.astype(np.float64), ends, axis=1)
    queries, keys = (
        _normalised(part.reshape(-1, num_key_heads, key_dim), attributes["norm_epsilon"]).repeat(
            value_heads // num_key_heads, axis=1
        )
        for part in (queries, keys)
    )
    queries, values = queries * attributes["scale"], values.reshape(-1, value_heads, value_dim)
    decay = np.exp(-np.exp(a_log.astype(np.float64)) * np.logaddexp(0, a.astype(np.float64) + dt_bias))
    beta = np.exp(-np.logaddexp(0, -b.astype(np.float64)))
    y, updated = np.zeros((len(qkv), value_heads, value_dim)), states.copy()
    for span in state_spans(cu_seqlens, past_lens, block_tables, attributes):
        state = np.zeros(states.shape[1:]) if span.source is None else states[span.source].astype(np.float64)
        for row in range(span.rows.start, span.rows.stop):
            state = state * decay[row, :, None, None]
            seen = np.einsum("hkv,hk->hv", state, keys[row])
            delta = beta[row, :, None] * (values[row] - seen)
            state = state + keys[row, :, :, None] * delta[:, None]
            y[row] = np.einsum("hkv,hk->hv", state, queries[row])
        updated[span.target] = state
    return y.reshape(len(qkv), -1).astype(np.float32), updated


def _normalised(heads: np.ndarray, epsilon: float) -> np.ndarray:
    return heads / np.sqrt((heads**2).sum(-1, keepdims=True) + epsilon)
