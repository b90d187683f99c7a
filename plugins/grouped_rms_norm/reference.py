"""GroupedRmsNorm in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trtllm_lite.plugins.activations import activate
from trtllm_lite.plugins.columns import columns


def reference(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """``(x [rows, features], gate [rows, gate_features], weight [num_groups, group_size]) -> (y like x,)``."""
    x, rows, weight = inputs[0].astype(np.float64), inputs[1], inputs[2].astype(np.float64)
    gates, gates_first = np.ones(x.shape), attributes["order"] == "gate_first"
    if rows is not None:
        gates = activate("silu", columns(rows.astype(np.float64), attributes["gate_first"], x.shape[1]))
    groups = (x * gates if gates_first else x).reshape(-1, *weight.shape)
    rms = np.sqrt(np.mean(groups**2, axis=-1, keepdims=True) + attributes["epsilon"])
    normalised = (groups / rms * weight).reshape(x.shape)
    return ((normalised if gates_first else normalised * gates).astype(np.float32),)
