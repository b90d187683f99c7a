"""GatedRmsNorm in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trtllm_lite.plugins.activations import activate
from trtllm_lite.plugins.columns import columns


def reference(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """``(x [rows, features], gate [rows, gate_features], weight [group_size]) -> (y [rows, features],)``."""
    x, rows, weight = inputs
    gate = columns(rows, attributes["gate_first"], x.shape[1])
    groups = x.astype(np.float64).reshape(len(x), -1, len(weight))
    rms = np.sqrt(np.mean(groups**2, axis=-1, keepdims=True) + attributes["epsilon"])
    normalised = (groups / rms * weight).reshape(x.shape)
    return ((normalised * activate(attributes["activation"], gate.astype(np.float64))).astype(np.float32),)
