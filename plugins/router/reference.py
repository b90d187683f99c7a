"""Router in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def reference(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """``(x [rows, K], weight [K, experts], bias [experts] or None) -> (ids and shares [rows, top_k], scores)``."""
    x, weight, bias = inputs
    scores = x.astype(np.float64) @ weight + (0 if bias is None else bias)
    ids = np.argsort(-scores, axis=-1, kind="stable")[:, : attributes["top_k"]]
    chosen = np.take_along_axis(scores, ids, axis=-1)
    match attributes["scoring"]:
        case "softmax_of_chosen":
            shares = _softmax(chosen)
        case scoring:
            shares = np.take_along_axis(_softmax(scores), ids, axis=-1)
            if scoring == "normalized_softmax":
                shares = shares / shares.sum(-1, keepdims=True)
    return ids.astype(np.int32), shares.astype(np.float32), scores.astype(np.float32)


def _softmax(scores: NDArray) -> NDArray:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
