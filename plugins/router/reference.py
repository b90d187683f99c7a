"""Router in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def reference(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """``(x [rows, K], weight [K, experts]) -> (ids and shares [rows, top_k], scores [rows, experts])``."""
    x, weight = inputs
    scores = x.astype(np.float64) @ weight
    ids = np.argsort(-scores, axis=-1, kind="stable")[:, : attributes["top_k"]]
    shares = shares_of(scores, ids, attributes["scoring"])
    return ids.astype(np.int32), shares.astype(np.float32), scores.astype(np.float32)


def shares_of(scores: NDArray, ids: NDArray, scoring: str) -> NDArray:
    """The shares [rows, top_k] of the chosen, by the scores [rows, experts] of all."""
    if scoring == "softmax_of_chosen":
        return _softmax(np.take_along_axis(scores, ids, axis=-1))
    shares = np.take_along_axis(_softmax(scores), ids, axis=-1)
    return shares / shares.sum(-1, keepdims=True) if scoring == "normalized_softmax" else shares


def _softmax(scores: NDArray) -> NDArray:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
