"""QuantizeRows in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

_RANGES = {"int8": (-128, 127), "float8_e4m3fn": (-448, 448)}


def reference(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """``(x [rows, K], scale [1] | None) -> (y [rows, K], y_scale [rows])``, float32, with the roundings of float32."""
    x, scale = inputs
    if scale is None:
        largest = np.abs(x).max(-1) * np.float32(attributes["scale_factor"])
        scale = np.maximum(largest, np.float32(attributes["min_scale"]))
    scale = np.broadcast_to(scale, x.shape[:1]).astype(np.float32)
    clipped = np.clip(x / scale[:, None], *_RANGES[attributes["to"]])
    y = np.rint(clipped) if attributes["to"] == "int8" else clipped.astype(ml_dtypes.float8_e4m3fn)
    return y.astype(np.float32), scale
