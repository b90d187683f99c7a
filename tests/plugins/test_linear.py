"""Linear and GatedLinear: values, and independence of a row from all other rows."""

import numpy as np
import pytest

from tests.plugins.harness import WEIGHT_DTYPES, assert_close, assert_same_bits, reference, run

ROWS = (1, 3, 17, 65, 129)
# (features, depth): whole panels, tails in either, depths around the 128 of a chunk.
SHAPES = ((64, 64), (1, 1), (33, 7), (100, 129), (200, 577), (130, 1536))


def operands(rows: int, shape: tuple[int, ...], dtype: str) -> list[np.ndarray]:
    """x and a weight of logical ``shape``, scaled so that outputs are about 1."""
    rng = np.random.default_rng([rows, *shape])
    x = rng.standard_normal((rows, shape[-1]), np.float32)
    weight = rng.standard_normal(shape, np.float32) / np.sqrt(np.float32(shape[-1]))
    return [x, weight.astype(WEIGHT_DTYPES[dtype])]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear_matches_reference(isa: str, rows: int, shape: tuple[int, int], dtype: str, with_bias: bool) -> None:
    bias = np.linspace(-1, 1, shape[0], dtype=np.float32) if with_bias else None
    inputs = [*operands(rows, shape, dtype), bias]
    actual = run("Linear", inputs, isa=isa, layout="panel64")
    assert_close(actual["y"], reference("Linear", inputs)["y"], dtype)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
def test_gated_linear_matches_reference(isa: str, rows: int, shape: tuple[int, int], dtype: str) -> None:
    inputs = [*operands(rows, (2, *shape), dtype), None]
    actual = run("GatedLinear", inputs, isa=isa, layout="gated_panel64")
    assert_close(actual["y"], reference("GatedLinear", inputs)["y"], dtype)


@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize("shape", [(1, 1), (33, 7), (100, 129)])
def test_gate_and_up_have_their_own_biases(isa: str, rows: int, shape: tuple[int, int]) -> None:
    bias = np.linspace(-1, 1, 2 * shape[0], dtype=np.float32).reshape(2, -1)
    inputs = [*operands(rows, (2, *shape), "bfloat16"), bias]
    actual = run("GatedLinear", inputs, isa=isa, layout="gated_panel64")
    assert_close(actual["y"], reference("GatedLinear", inputs)["y"], "bfloat16")


@pytest.mark.parametrize(("op", "layout"), [("Linear", "panel64"), ("GatedLinear", "gated_panel64")])
@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
def test_row_does_not_depend_on_batch_or_threads(isa: str, op: str, layout: str, dtype: str) -> None:
    shape = (2, 100, 577) if op == "GatedLinear" else (200, 577)
    x, weight = operands(129, shape, dtype)
    whole = run(op, [x, weight, None], isa=isa, layout=layout, num_threads=1)["y"]
    for first, rows in [(0, 1), (5, 2), (7, 3), (1, 4), (2, 5), (60, 6), (10, 7), (30, 8), (11, 13), (3, 19), (20, 97)]:
        for num_threads in (1, 3):
            part = run(op, [x[first : first + rows], weight, None], isa=isa, layout=layout, num_threads=num_threads)[
                "y"
            ]
            assert_same_bits(part, whole[first : first + rows])


def test_gate_that_overflows_exp(isa: str) -> None:
    """silu(-1000) is 0 and silu(1000) is 1000, not NaN."""
    x = np.array([[-1000.0], [1000.0], [-88.5], [0.0]], np.float32)
    weight = np.ones((2, 3, 1), np.float32)
    y = run("GatedLinear", [x, weight, None], isa=isa, layout="gated_panel64")["y"]
    np.testing.assert_allclose(y, [[0] * 3, [1e6] * 3, [0] * 3, [0] * 3], atol=1e-30)


def test_non_finite_row_stays_in_its_row(isa: str) -> None:
    x, weight = operands(9, (70, 33), "bfloat16")
    clean = run("Linear", [x, weight, None], isa=isa, layout="panel64")["y"]
    x[4] = np.nan
    y = run("Linear", [x, weight, None], isa=isa, layout="panel64")["y"]
    assert np.isnan(y[4]).all()
    others = [row for row in range(9) if row != 4]
    assert_same_bits(y[others], clean[others])
