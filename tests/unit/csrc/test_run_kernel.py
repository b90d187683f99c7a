"""run_kernel refuses calls that do not satisfy the operator's schema, before the kernel sees them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.unit.csrc.tiny_engine import pack
from trtllm_lite._core import run_kernel
from trtllm_lite.errors import ArgumentError, EngineError

ROWS, IN, OUT = 3, 8, 70


def linear_call() -> dict[str, Any]:
    """A valid call of Linear, by keyword."""
    rng = np.random.default_rng(0)
    weight = pack(rng.standard_normal((OUT, IN), np.float32), "panel64")
    return {
        "op": "Linear",
        "inputs": [rng.standard_normal((ROWS, IN), np.float32), weight, *[None] * 5],
        "outputs": [np.empty((ROWS, OUT), np.float32)],
        "attributes": {"activation": "none"},
        "layouts": ["row_major", "panel64", "panel64", "row_major", "row_major", "panel64", "row_major"],
    }


def test_runs_a_valid_call() -> None:
    call = linear_call()
    run_kernel(**call)
    x, packed, *_ = call["inputs"]
    weight = packed.transpose(0, 2, 1).reshape(-1, IN)[:OUT]
    np.testing.assert_allclose(call["outputs"][0], x @ weight.T, rtol=1e-5, atol=1e-5)


REFUSED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "unknown operator": (lambda c: c.update(op="Conv"), "unknown operator Conv"),
    "arity": (lambda c: c["inputs"].pop(), "expected as many layouts"),
    "missing operand": (lambda c: c["inputs"].__setitem__(0, None), "input x: expected an operand, found none"),
    "dtype": (lambda c: c["inputs"].__setitem__(0, np.zeros((ROWS, IN), np.int32)), "input x: dtype int32"),
    "unknown dtype": (lambda c: c["inputs"].__setitem__(0, np.zeros((ROWS, IN))), "expected arrays of float32"),
    "a scale of a float weight": (
        lambda c: c["inputs"].__setitem__(2, pack(np.ones((OUT, 1), np.float32), "panel64")),
        "input weight: expected weight_scale if and only if the dtype wants scales, found dtype float32",
    ),
    "int8 without scales": (
        lambda c: c["inputs"].__setitem__(1, c["inputs"][1].astype(np.int8)),
        "input weight: expected weight_scale if and only if the dtype wants scales, found dtype int8",
    ),
    "layout": (lambda c: c.update(layouts=None), "input weight: layout row_major"),
    "unknown layout": (lambda c: c["layouts"].__setitem__(1, "tiles"), "unknown layout tiles"),
    "rank": (lambda c: c["outputs"].__setitem__(0, np.zeros(ROWS, np.float32)), "output y: expected rank 2, found 1"),
    "depth": (
        lambda c: c["inputs"].__setitem__(0, np.zeros((ROWS, IN + 1), np.float32)),
        "input weight: axis 1: expected in_features = 9, found 8",
    ),
    "rows": (
        lambda c: c["outputs"].__setitem__(0, np.zeros((ROWS + 1, OUT), np.float32)),
        "output y: axis 0: expected rows = 3, found 4",
    ),
    "panels": (lambda c: c["outputs"].__setitem__(0, np.zeros((ROWS, 129), np.float32)), "do not hold 129 features"),
    "extra attribute": (lambda c: c["attributes"].update(epsilon=1.0), "expected 1 attributes"),
    "unknown choice": (
        lambda c: c.update(attributes={"activation": "relu"}),
        "activation: expected one of none silu gelu gelu_tanh",
    ),
    "wrong bf16 dtype": (lambda c: c.update(dtypes=["bfloat16", *["float32"] * 6]), "does not describe the array"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(case: str) -> None:
    change, message = REFUSED[case]
    call = linear_call()
    change(call)
    with pytest.raises(EngineError, match=message):
        run_kernel(**call)


def test_refuses_options() -> None:
    with pytest.raises(ArgumentError, match="isa: expected auto or one that this machine supports"):
        run_kernel(**linear_call(), isa="neon2")
    with pytest.raises(ArgumentError, match="num_threads"):
        run_kernel(**linear_call(), num_threads=-1)
