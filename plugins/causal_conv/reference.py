"""CausalConv in numpy, one sequence at a time."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trtllm_lite.plugins.activations import activate
from trtllm_lite.plugins.state_spans import state_spans


def reference(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """Inputs as in ``schema.toml`` -> ``(y, conv_state_out)``; inputs are not changed."""
    x, weight, states, cu_seqlens, past_lens, block_tables, bias = inputs
    y, updated, history = np.zeros(x.shape), states.copy(), states.shape[2]
    for span in state_spans(cu_seqlens, past_lens, block_tables, attributes):
        before = np.zeros(states.shape[1:]) if span.source is None else states[span.source]
        seen = np.concatenate([before.T, x[span.rows]]).astype(np.float64)
        count = len(seen) - history
        for j, column in enumerate(weight.astype(np.float64).T):
            y[span.rows] += column * seen[j : j + count]
        updated[span.target] = seen[count:].T
    total = y if bias is None else y + bias
    return activate(attributes["activation"], total).astype(np.float32), updated
