"""The activation functions of operators in numpy, by the names that their schemas give them."""

from __future__ import annotations

from collections.abc import Callable
from math import erfc

import numpy as np

Function = Callable[[np.ndarray], np.ndarray]


def _silu(x: np.ndarray) -> np.ndarray:
    return x * _sigmoid(x)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -x))


def _gelu(x: np.ndarray) -> np.ndarray:
    """x Phi(x) with the normal distribution's Phi(x) = erfc(-x / sqrt(2)) / 2 (arXiv 1606.08415)."""
    return x * np.vectorize(erfc, otypes=[np.float64])(-x / np.sqrt(2)) / 2


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def _relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def _relu2(x: np.ndarray) -> np.ndarray:
    """The square of ReLU (arXiv 2109.08668)."""
    return np.maximum(x, 0) ** 2


ACTIVATIONS: dict[str, Function] = {
    **{"none": lambda x: x, "silu": _silu, "gelu": _gelu, "gelu_tanh": _gelu_tanh, "sigmoid": _sigmoid},
    **{"relu": _relu, "relu2": _relu2},
}

_SWIGLU_ALPHA, _SWIGLU_LIMIT = 1.702, 7.0


def gated(name: str, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """Combine both by the gating ``name``, preferably in float64: activation(gate) * up, or swiglu_oai."""
    if name != "swiglu_oai":
        return activate(name, gate) * up
    gate, up = np.minimum(gate, _SWIGLU_LIMIT), np.clip(up, -_SWIGLU_LIMIT, _SWIGLU_LIMIT)
    return gate * _sigmoid(_SWIGLU_ALPHA * gate) * (up + 1)


def activate(name: str, x: np.ndarray) -> np.ndarray:
    """Apply the activation ``name`` to ``x``, preferably in float64."""
    return ACTIVATIONS[name](x)
