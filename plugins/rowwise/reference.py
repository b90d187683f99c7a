"""Rowwise in numpy."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..activations import ACTIVATIONS
from ..columns import columns
from .expression import MAX_ROWS, MAX_VECTORS, evaluate

_FUNCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "neg": np.negative,
    "tanh": np.tanh,
    "sigmoid": lambda x: np.exp(-np.logaddexp(0, -x)),
    "relu": lambda x: np.maximum(x, 0),
    "exp": np.exp,
    "sqrt": np.sqrt,
    "reciprocal": np.reciprocal,
    **{name: ACTIVATIONS[name] for name in ("silu", "gelu", "gelu_tanh")},
}


def reference(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """Rows [rows, features], vectors [features] and constants, as in ``schema.toml`` -> ``(y like x0,)`` float32."""
    first = {"x": 0, "v": MAX_ROWS}
    constants = inputs[MAX_ROWS + MAX_VECTORS]
    if inputs[1] is not None:
        inputs = [inputs[0], columns(inputs[1], int(attributes["x1_first"]), inputs[0].shape[1]), *inputs[2:]]

    def operand(word: str) -> np.ndarray:
        index = int(word[1:])
        found = constants[index] if word[0] == "c" else inputs[first[word[0]] + index]
        return np.broadcast_to(found, inputs[0].shape).astype(np.float64)

    return (evaluate(attributes["program"], operand, _FUNCTIONS).astype(np.float32),)
