"""Rowwise: every operation, sizes around its vector width, and programs that are refused."""

import numpy as np
import pytest

from tests.plugins.harness import assert_close, assert_same_bits, reference, run
from tests.plugins.test_bounds import run_guarded
from trtllm_lite.errors import EngineError
from trtllm_lite.plugins.rowwise.expression import ARITY

SOFTCAP = "x0 c0 div tanh c0 mul"
DEEPEST = "x0 x1 x0 x1 x0 x1 x0 x1 " + "add " * 6 + "add"


def inputs_of(rows: int, features: int) -> list[np.ndarray | None]:
    """x0 and x1, v0, and two constants; all are positive, so that square roots exist."""
    rng = np.random.default_rng([rows, features])
    x = rng.uniform(0.1, 3, (2, rows, features)).astype(np.float32)
    vector = rng.uniform(0.1, 3, features).astype(np.float32)
    return [x[0], x[1], None, None, vector, None, None, None, np.array([2.5, -0.5], np.float32)]


@pytest.mark.parametrize("word", ARITY)
def test_every_operation(isa: str, word: str) -> None:
    program = {"program": f"x0 x1 {word}" if ARITY[word] == 2 else f"x0 c1 add {word}", "x1_first": 0}
    if word in ("sqrt", "reciprocal"):
        program = {"program": f"x0 {word}", "x1_first": 0}
    inputs = inputs_of(3, 77)
    assert_close(run("Rowwise", inputs, program, isa=isa)["y"], reference("Rowwise", inputs, program)["y"])


@pytest.mark.parametrize("rows", [1, 3, 65])
@pytest.mark.parametrize("features", [1, 7, 256, 257, 1031])
@pytest.mark.parametrize("program", [SOFTCAP, "x0 x1 v0 mul add c1 sub", "v0", DEEPEST])
def test_matches_reference(isa: str, rows: int, features: int, program: str) -> None:
    inputs = inputs_of(rows, features)
    attributes = {"program": program, "x1_first": 0}
    actual = run("Rowwise", inputs, attributes, isa=isa)["y"]
    assert_close(actual, reference("Rowwise", inputs, attributes)["y"])


@pytest.mark.parametrize("features", [1, 7, 256, 257, 1031])
@pytest.mark.parametrize("program", ["x0", "x0 c0 mul v0 add", "x1 x0 sub"])
def test_bytes_are_numbers(isa: str, features: int, program: str) -> None:
    inputs, attributes = inputs_of(3, features), {"program": program, "x1_first": 0}
    inputs[0] = np.random.default_rng(features).integers(0, 256, (3, features)).astype(np.uint8)
    inputs[0][0, :1] = 255
    actual = run("Rowwise", inputs, attributes, isa=isa)["y"]
    assert_close(actual, reference("Rowwise", inputs, attributes)["y"])


def test_a_row_does_not_depend_on_batch_or_threads(isa: str) -> None:
    inputs, attributes = inputs_of(70, 577), {"program": "x0 x1 mul c0 div tanh v0 mul gelu", "x1_first": 0}
    whole = run("Rowwise", inputs, attributes, isa=isa, num_threads=3)["y"]
    for row in (0, 33, 69):
        part = [None if x is None else x[row : row + 1] if x.ndim == 2 else x for x in inputs]
        assert_same_bits(run("Rowwise", part, attributes, isa=isa, num_threads=1)["y"], whole[row : row + 1])


def test_touches_no_memory_past_its_operands(isa: str) -> None:
    run_guarded("Rowwise", inputs_of(3, 277), {"program": "x0 x1 add v0 mul c1 mul", "x1_first": 0}, "row_major", isa)


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("", "operands x0, v0, c0"),
        ("x0  neg", "operands x0, v0, c0"),
        ("x0 cosh", "operands x0, v0, c0"),
        ("x0 X1 add", "program: expected at most 1024 characters"),
        ("x" * 1025, "program: expected at most 1024 characters"),
        ("x0 add", "as many values before an operation"),
        ("x0 x1", "one value at the end"),
        ("x0 " * 9 + "add " * 7 + "add", "at most 8 values that wait"),
        ("x0" + " neg" * 64, "at most 64 words"),
        ("x2", "found word 0 to name another"),
        ("x4", "found word 0 to name another"),
        ("x99", "found word 0 to name another"),
        ("x100", "operands x0, v0, c0"),
        ("x0 v1 add", "found word 1 to name another"),
        ("x0 v4 add", "found word 1 to name another"),
        ("x0 c2 add", "found word 1 to name another"),
    ],
)
def test_refuses_a_program(program: str, problem: str) -> None:
    with pytest.raises(EngineError, match=problem):
        run("Rowwise", inputs_of(2, 8), {"program": program, "x1_first": 0})
