"""CausalConv in numpy, one sequence at a time."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trtllm_lite.plugins.activations import activate
from trtllm_lite.plugins.columns import columns
from trtllm_lite.plugins.state_spans import state_spans


def reference(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """Inputs as in ``schema.toml`` -> ``(y, conv_state_out)``; inputs are not changed."""
    rows, weight, states, cu_seqlens, past_lens, block_tables, bias = inputs
    x = columns(rows, attributes["x_first"], len(weight))
    y, updated = np.zeros(x.shape), states.copy()
    slots, history = states.shape[1], weight.shape[1] - 1
    for span in state_spans(cu_seqlens, past_lens, block_tables, attributes):
        before = np.zeros((history, x.shape[1]))
        for position in range(max(span.past - history, 0), span.past):
            before[position - span.past] = states[span.block, position % slots]
        seen = np.concatenate([before, x[span.rows].astype(np.float64)])
        for j, column in enumerate(weight.astype(np.float64).T):
            y[span.rows] += column * seen[j : j + span.count]
        for position in range(max(span.end - slots, span.past), span.end):
            updated[span.block, position % slots] = x[span.rows.start + position - span.past]
    total = y if bias is None else y + bias
    return activate(attributes["activation"], total).astype(np.float32), updated
