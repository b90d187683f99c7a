"""Mamba2 in numpy, one token at a time."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trtllm_lite.plugins.columns import columns
from trtllm_lite.plugins.replay import Replay, ReplayState
from trtllm_lite.plugins.state_spans import state_spans


def reference(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """Inputs as in ``schema.toml`` -> ``(y, recurrent_state_out)``; inputs are not changed."""
    xbc, rows, a_log, dt_bias, d, states, cu_seqlens, past_lens, block_tables = inputs
    dt = columns(rows, attributes["dt_first"], len(a_log))
    layout, heads, groups = ReplayState.of(attributes, states.dtype.name), len(a_log), int(attributes["num_groups"])
    ends = np.cumsum([heads * layout.value_dim, groups * layout.key_dim])
    x, *vectors = np.split(xbc.astype(np.float64), ends, axis=1)
    x = x.reshape(-1, heads, layout.value_dim)
    b, c = (part.reshape(-1, groups, layout.key_dim).repeat(heads // groups, axis=1) for part in vectors)
    step = np.logaddexp(0, dt.astype(np.float64) + dt_bias).clip(attributes["min_step"], attributes["max_step"])
    decay = -np.exp(a_log.astype(np.float64)) * step
    y, updated = np.zeros(x.shape), states.copy()
    for span in state_spans(cu_seqlens, past_lens, block_tables, attributes):
        replay = Replay(layout, updated[span.block], span)
        for row in range(span.rows.start, span.rows.stop):
            replay.add(b[row], step[row, :, None] * x[row], decay[row, :, None])
            y[row] = np.einsum("hnp,hn->hp", replay.matrix, c[row]) + d[:, None] * x[row]
        replay.store()
    return y.reshape(len(xbc), -1).astype(np.float32), updated
