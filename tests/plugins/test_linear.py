"""Linear and GatedLinear: values, and independence of a row from all other rows."""

import ml_dtypes
import numpy as np
import pytest

from tests.plugins.harness import WEIGHT_DTYPES, as_multiplied, assert_close, assert_same_bits, reference, run

DTYPES = (*WEIGHT_DTYPES, "int8", "float8_e4m3fn")
PLAIN, SILU = {"activation": "none"}, {"activation": "silu"}
ROWS = (1, 3, 17, 65, 129)
# (features, depth): whole panels, tails in either, depths around a chunk of 128, more panels than a task streams.
SHAPES = ((64, 64), (1, 1), (33, 7), (400, 129), (200, 577), (130, 1536))


def operands(rows: int, shape: tuple[int, ...], dtype: str) -> list[np.ndarray]:
    """x, a weight of logical ``shape`` and its scales if it has some; outputs are about 1."""
    rng = np.random.default_rng([rows, *shape])
    x = rng.standard_normal((rows, shape[-1]), np.float32)
    if dtype == "int8":
        weight = rng.integers(-127, 128, shape, np.int8)
        return [x, weight, rng.uniform(0.4, 1, (*shape[:-1], 1)).astype(np.float32) / np.float32(73 * shape[-1] ** 0.5)]
    if dtype == "float8_e4m3fn":
        weight = rng.uniform(-448, 448, shape).astype(ml_dtypes.float8_e4m3fn)
        scale = rng.uniform(0.4, 1, (*shape[:-1], 1)).astype(np.float32)
        return [x, weight, scale / np.float32(259 * shape[-1] ** 0.5)]
    weight = rng.standard_normal(shape, np.float32) / np.sqrt(np.float32(shape[-1]))
    return [x, weight.astype(WEIGHT_DTYPES[dtype]), None]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear_matches_reference(isa: str, rows: int, shape: tuple[int, int], dtype: str, with_bias: bool) -> None:
    bias = np.linspace(-1, 1, shape[0], dtype=np.float32) if with_bias else None
    inputs = [*operands(rows, shape, dtype), bias]
    actual = run("Linear", inputs, PLAIN, isa=isa, layout="panel64")
    assert_close(actual["y"], reference("Linear", as_multiplied(inputs, isa), PLAIN)["y"], dtype)


@pytest.mark.parametrize(
    ("op", "layout", "activation"),
    [
        *(("Linear", "panel64", name) for name in ("silu", "gelu", "gelu_tanh", "relu2")),
        *(("GatedLinear", "gated_panel64", name) for name in ("silu", "gelu", "gelu_tanh")),
    ],
)
def test_activations(isa: str, op: str, layout: str, activation: str) -> None:
    shape = (2, 70, 33) if op == "GatedLinear" else (70, 33)
    inputs = [*operands(9, shape, "bfloat16"), np.linspace(-4, 4, int(np.prod(shape[:-1])), dtype=np.float32)]
    inputs[3] = inputs[3].reshape(shape[:-1])
    attributes = {"activation": activation}
    actual = run(op, inputs, attributes, isa=isa, layout=layout)
    assert_close(actual["y"], reference(op, as_multiplied(inputs, isa), attributes)["y"], "bfloat16")


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu2"])
def test_an_activation_is_precise_everywhere(isa: str, activation: str) -> None:
    """Each value is precise to a few ulps, also in the tails, where a difference with 1 would cancel."""
    x = np.concatenate([np.linspace(-5, 5, 2001), np.linspace(-80, 80, 321), [1e-20, -1e-20, 0]]).astype(np.float32)
    inputs = [x[:, None], np.ones((1, 1), np.float32), None, None]
    actual = run("Linear", inputs, {"activation": activation}, isa=isa, layout="panel64")["y"]
    expected = reference("Linear", as_multiplied(inputs, isa), {"activation": activation})["y"]
    # In float64 gelu_tanh's own formula cancels below -6, where its value is 1e-13 or less.
    np.testing.assert_allclose(actual, expected, rtol=4e-6, atol=1e-14)


@pytest.mark.parametrize("activation", ["none", "silu", "gelu", "gelu_tanh", "relu2"])
def test_an_activation_keeps_nan(isa: str, activation: str) -> None:
    inputs = [np.full((2, 1), np.nan, np.float32), np.ones((3, 1), np.float32), None, None]
    assert np.isnan(run("Linear", inputs, {"activation": activation}, isa=isa, layout="panel64")["y"]).all()


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gated_linear_matches_reference(isa: str, rows: int, shape: tuple[int, int], dtype: str) -> None:
    inputs = [*operands(rows, (2, *shape), dtype), None]
    actual = run("GatedLinear", inputs, SILU, isa=isa, layout="gated_panel64")
    assert_close(actual["y"], reference("GatedLinear", as_multiplied(inputs, isa), SILU)["y"], dtype)


@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize("shape", [(1, 1), (33, 7), (100, 129)])
def test_gate_and_up_have_their_own_biases(isa: str, rows: int, shape: tuple[int, int]) -> None:
    bias = np.linspace(-1, 1, 2 * shape[0], dtype=np.float32).reshape(2, -1)
    inputs = [*operands(rows, (2, *shape), "bfloat16"), bias]
    actual = run("GatedLinear", inputs, SILU, isa=isa, layout="gated_panel64")
    assert_close(actual["y"], reference("GatedLinear", as_multiplied(inputs, isa), SILU)["y"], "bfloat16")


@pytest.mark.parametrize(("op", "layout"), [("Linear", "panel64"), ("GatedLinear", "gated_panel64")])
@pytest.mark.parametrize("dtype", DTYPES)
def test_row_does_not_depend_on_batch_or_threads(isa: str, op: str, layout: str, dtype: str) -> None:
    shape = (2, 100, 577) if op == "GatedLinear" else (200, 577)
    x, *weight = operands(129, shape, dtype)
    attributes = SILU if op == "GatedLinear" else PLAIN
    whole = run(op, [x, *weight, None], attributes, isa=isa, layout=layout, num_threads=1)["y"]
    for first, rows in [(0, 1), (5, 2), (7, 3), (1, 4), (2, 5), (60, 6), (10, 7), (30, 8), (11, 13), (3, 19), (20, 97)]:
        for num_threads in (1, 3):
            rows_of_x = [x[first : first + rows], *weight, None]
            part = run(op, rows_of_x, attributes, isa=isa, layout=layout, num_threads=num_threads)["y"]
            assert_same_bits(part, whole[first : first + rows])


def test_gate_that_overflows_exp(isa: str) -> None:
    """silu(-1000) is 0 and silu(1000) is 1000, not NaN."""
    x = np.array([[-1000.0], [1000.0], [-88.5], [0.0]], np.float32)
    weight = np.ones((2, 3, 1), np.float32)
    y = run("GatedLinear", [x, weight, None, None], SILU, isa=isa, layout="gated_panel64")["y"]
    np.testing.assert_allclose(y, [[0] * 3, [1e6] * 3, [0] * 3, [0] * 3], atol=1e-30)


def test_non_finite_row_stays_in_its_row(isa: str) -> None:
    x, *weight = operands(9, (70, 33), "bfloat16")
    clean = run("Linear", [x, *weight, None], PLAIN, isa=isa, layout="panel64")["y"]
    x[4] = np.nan
    y = run("Linear", [x, *weight, None], PLAIN, isa=isa, layout="panel64")["y"]
    assert np.isnan(y[4]).all()
    others = [row for row in range(9) if row != 4]
    assert_same_bits(y[others], clean[others])


def test_non_finite_row_of_blocks_stays_in_its_row(isa: str) -> None:
    x, *rest = blocked(9, (70, 64), 32, "uint4", "float16", "float16")
    clean = run("Linear", [x, *rest], PLAIN, isa=isa, layout="panel64")["y"]
    x[4, 40], x[5, 3] = np.nan, np.inf
    for first, rows in ((0, 9), (3, 3)):
        y = run("Linear", [x[first : first + rows], *rest], PLAIN, isa=isa, layout="panel64")["y"]
        finite = [row for row in range(rows) if first + row not in (4, 5)]
        assert not np.isfinite(y[[4 - first, 5 - first]]).any()
        assert_same_bits(y[finite], clean[[first + row for row in finite]])


def test_every_byte_of_float8_is_converted_exactly(isa: str) -> None:
    """All bit patterns except NaN are tested, including subnormals and both zeros."""
    bits = np.array([byte for byte in range(256) if byte & 0x7F != 0x7F], np.uint8)
    weight = bits.view(ml_dtypes.float8_e4m3fn)[:, None]
    inputs = [np.ones((1, 1), np.float32), weight, np.ones((len(bits), 1), np.float32), None]
    y = run("Linear", inputs, PLAIN, isa=isa, layout="panel64")["y"]
    np.testing.assert_array_equal(y[0], weight[:, 0].astype(np.float32))


NIBBLES = {"int4": (ml_dtypes.int4, -8), "uint4": (ml_dtypes.uint4, 0)}
# (features, depth, block): one block per row, blocks smaller than a chunk of 128, of a chunk, and of several chunks.
BLOCKED = ((64, 64, 64), (3, 8, 8), (33, 96, 32), (130, 576, 32), (100, 384, 48), (70, 1024, 128), (70, 640, 320))


def blocked(rows: int, shape: tuple[int, ...], block: int, dtype: str, scale: str, offset: str | None) -> list:
    """Like :func:`operands`, with 4-bit or int8 weights, and a scale, perhaps an offset, for each block."""
    rng = np.random.default_rng([rows, *shape])
    x = rng.standard_normal((rows, shape[-1]), np.float32)
    kind, least = NIBBLES.get(dtype, (np.int8, -127))
    count = 16 if dtype in NIBBLES else 255
    weight = (rng.integers(0, count, shape) + least).astype(np.int8).astype(kind)
    blocks, unit = (*shape[:-1], shape[-1] // block), 4 / count / shape[-1] ** 0.5
    scales = (rng.uniform(0.4, 1, blocks) * unit).astype(WEIGHT_DTYPES[scale])
    if offset is None:
        return [x, weight, scales]
    middle = -(least + count / 2)
    return [x, weight, scales, None, None, (scales.astype(np.float32) * middle).astype(WEIGHT_DTYPES[offset])]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shape", BLOCKED)
@pytest.mark.parametrize("dtype", ["int4", "uint4", "int8"])
@pytest.mark.parametrize(("scale", "offset"), [("float32", None), ("float16", "float16"), ("bfloat16", "float32")])
def test_blocks_match_reference(
    isa: str, rows: int, shape: tuple[int, int, int], dtype: str, scale: str, offset: str | None
) -> None:
    features, depth, block = shape
    inputs = blocked(rows, (features, depth), block, dtype, scale, offset)
    actual = run("Linear", inputs, PLAIN, isa=isa, layout="panel64")
    assert_close(actual["y"], reference("Linear", as_multiplied(inputs, isa), PLAIN)["y"], "int8")


@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize("shape", BLOCKED)
@pytest.mark.parametrize("dtype", ["int4", "uint4", "int8"])
def test_gated_blocks_match_reference(isa: str, rows: int, shape: tuple[int, int, int], dtype: str) -> None:
    features, depth, block = shape
    inputs = blocked(rows, (2, features, depth), block, dtype, "float16", "float16")
    actual = run("GatedLinear", inputs, SILU, isa=isa, layout="gated_panel64")
    assert_close(actual["y"], reference("GatedLinear", as_multiplied(inputs, isa), SILU)["y"], "int8")


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int8"])
@pytest.mark.parametrize("block", [8, 32, 72, 288, 576])
def test_row_of_blocks_does_not_depend_on_batch_or_threads(isa: str, dtype: str, block: int) -> None:
    x, *rest = blocked(129, (100, 576), block, dtype, "float16", "float16")
    whole = run("Linear", [x, *rest], PLAIN, isa=isa, layout="panel64", num_threads=1)["y"]
    for first, rows in [(0, 1), (5, 2), (7, 3), (1, 4), (2, 5), (60, 6), (10, 7), (11, 13), (20, 97)]:
        part = run("Linear", [x[first : first + rows], *rest], PLAIN, isa=isa, layout="panel64", num_threads=3)["y"]
        assert_same_bits(part, whole[first : first + rows])


# E2M1 in the order of its bits, as in the OCP Microscaling Formats specification.
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


@pytest.mark.parametrize("rows", [1, 3, 17, 40])
@pytest.mark.parametrize(("features", "depth", "block"), [(3, 16, 16), (130, 576, 32), (70, 1024, 16)])
def test_blocks_of_e2m1_match_reference(isa: str, rows: int, features: int, depth: int, block: int) -> None:
    """Blocks of 16 have float32 scales, as in NVFP4; blocks of 32 have bfloat16 scales, which hold MXFP4's."""
    rng = np.random.default_rng([rows, depth])
    x = rng.standard_normal((rows, depth), np.float32)
    weight = rng.integers(0, 16, (2, features, depth)).astype(np.uint8).view(ml_dtypes.float4_e2m1fn)
    scale = rng.uniform(0.4, 1, (2, features, depth // block)) / depth**0.5
    scale = scale.astype(np.float32 if block == 16 else ml_dtypes.bfloat16)
    one, both = [x, weight[0], scale[0]], [x, weight, scale]
    for op, inputs, how, layout in (
        ("Linear", one, PLAIN, "panel64"),
        ("GatedLinear", both, SILU, "gated_panel64"),
    ):
        expected = reference(op, as_multiplied(inputs, isa), how)["y"]
        assert_close(run(op, inputs, how, isa=isa, layout=layout)["y"], expected, "int8")
    alone = [x[:1], *one[1:]]
    assert_same_bits(
        run("Linear", alone, PLAIN, isa=isa, layout="panel64")["y"],
        run("Linear", one, PLAIN, isa=isa, layout="panel64")["y"][:1],
    )


def test_every_e2m1_is_converted_exactly(isa: str) -> None:
    weight = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn)[None]
    inputs = [np.eye(16, dtype=np.float32), weight, np.ones((1, 1), np.float32)]
    y = run("Linear", inputs, PLAIN, isa=isa, layout="panel64")["y"]
    np.testing.assert_array_equal(y[:, 0], E2M1)


@pytest.mark.parametrize("dtype", NIBBLES)
def test_every_nibble_is_converted_exactly(isa: str, dtype: str) -> None:
    kind, least = NIBBLES[dtype]
    weight = np.arange(least, least + 16, dtype=np.int8).astype(kind)[None]
    inputs = [np.eye(16, dtype=np.float32), weight, np.ones((1, 1), np.float32)]
    y = run("Linear", inputs, PLAIN, isa=isa, layout="panel64")["y"]
    np.testing.assert_array_equal(y[:, 0], np.arange(least, least + 16))
