"""The stored form of adapters, made from their matrices, against numpy."""

import copy
import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.unit.builder.checkpoints import LIMITS, save_checkpoint
from tests.unit.builder.networks import Shape
from tests.unit.cuda.toy_engine import make_toy_engine_of_adapters, to_bytes
from trtllm_lite._core import Adapter, Engine, adapter_shapes
from trtllm_lite._testing import adapter_matrices
from trtllm_lite.builder import build_engine
from trtllm_lite.errors import EngineError, LimitError
from trtllm_lite.runtime.lora.peft import Pair

Matrix = np.ndarray[Any, Any]
MAX_RANK = 24
WIDTHS = [5, 70_001]  # the second is split into several tasks of the thread pool
NUM_IN = 13
STORED = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
SCALE = 32 / 3


def device_engine(directory: Path, dtype: str, widths: list[int] = WIDTHS) -> Engine:
    """An engine whose plan has adapters of odd extents; nothing executes it."""
    toy = copy.deepcopy(make_toy_engine_of_adapters())
    extents = {"a": [len(widths) * MAX_RANK, NUM_IN], "b": [sum(widths), MAX_RANK], "ranks": [len(widths)]}
    units = 0
    for tensor in toy.plan["tensors"]:
        name = tensor["name"].removeprefix("adapter_").removesuffix(".0")
        if tensor["kind"] == "adapter":
            tensor["shape"], tensor["offset"] = ["num_loras", *extents[name]], 256 * units
            tensor["dtype"] = "int32" if name == "ranks" else dtype
            units += -(-math.prod(extents[name]) * (4 if name == "ranks" else 2) // 256)
    toy.plan["symbols"]["adapter_stride"] = units
    toy.plan["cuda"]["adapted"][0]["widths"] = widths
    path = directory / f"{dtype}_{len(widths)}.engine"
    path.write_bytes(to_bytes(toy))
    return Engine(str(path))


@pytest.fixture(scope="module")
def host_engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """An engine for CPUs, with an MLP so wide that a matrix takes several tasks."""
    path = tmp_path_factory.mktemp("host")
    shape = Shape(layers=1, windows=(0,), heads=2, kv_heads=1, head_dim=6, hidden=14, inter=40_003)
    build_engine(save_checkpoint(path / "checkpoint", shape), path / "engine", **LIMITS, max_lora_rank=MAX_RANK)
    return Engine(str(path / "engine" / "rank0.engine"))


def unaligned(matrix: Matrix) -> Matrix:
    """A copy of the matrix that begins one byte past an aligned address; bfloat16 is given as uint16."""
    kind = np.dtype(np.uint16) if matrix.dtype == ml_dtypes.bfloat16 else matrix.dtype
    return np.frombuffer(b"-" + matrix.tobytes(), kind, offset=1).reshape(matrix.shape)


def random_matrix(shape: tuple[int, int], dtype: str, seed: int) -> Matrix:
    """Numbers of all magnitudes: in 16 bits some become subnormal or infinite, and some lie between two numbers."""
    random = np.random.default_rng(seed)
    matrix = random.standard_normal(shape) * 2.0 ** random.integers(-30, 13, shape)
    matrix.flat[:6] = [0.0, -0.0, 2.0**-24, -(2.0**-25), 1 + 2.0**-9, 1 + 2.0**-11]
    return matrix.astype(STORED[dtype])


def random_pairs(shapes: list[tuple[int, int]], stored: str, rank: int) -> dict[int, tuple[Matrix, Matrix]]:
    """Two matrices for every projection except number 2."""
    return {
        number: (random_matrix((rank, num_in), stored, number), random_matrix((num_out, rank), stored, ~number % 99))
        for number, (num_in, num_out) in enumerate(shapes)
        if number != 2
    }


def made(engine: Engine, pairs: dict[int, tuple[Matrix, Matrix]]) -> Adapter:
    given = {number: Pair(f"p{number}", unaligned(a), unaligned(b), SCALE) for number, (a, b) in pairs.items()}
    return Adapter(engine, given, b"key")


@pytest.mark.parametrize("rank", [1, 7, MAX_RANK])
@pytest.mark.parametrize("stored", STORED)
def test_cpus_read_float32_and_b_transposed(host_engine: Engine, stored: str, rank: int) -> None:
    _, shapes = adapter_shapes(host_engine)
    pairs = random_pairs(shapes, stored, rank)
    found = adapter_matrices(made(host_engine, pairs))
    assert {number for number, one in enumerate(found) if one is not None} == pairs.keys()
    for number, (a, b) in pairs.items():
        held = found[number]
        assert held is not None
        scaled = b.astype(np.float32).T * np.float32(SCALE)
        for actual, expected in zip(held, (a.astype(np.float32), scaled), strict=True):
            np.testing.assert_array_equal(actual.view(np.uint32), np.ascontiguousarray(expected).view(np.uint32))


@pytest.mark.parametrize("rank", [1, 7, MAX_RANK])
@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gpus_read_16_bits(tmp_path: Path, dtype: str, stored: str, rank: int) -> None:
    engine = device_engine(tmp_path, dtype)
    _, shapes = adapter_shapes(engine)
    assert shapes == [(NUM_IN, width) for width in WIDTHS]
    pairs = random_pairs(shapes, stored, rank)
    found = adapter_matrices(made(engine, pairs))
    for number, (a, b) in pairs.items():
        held = found[number]
        assert held is not None
        with np.errstate(over="ignore"):
            scaled = b.astype(np.float32) * np.float32(SCALE)
            expected = [one.astype(STORED[dtype]).view(np.uint16) for one in (a.astype(np.float32), scaled)]
        for actual, one in zip(held, expected, strict=True):
            np.testing.assert_array_equal(actual, one)


@pytest.mark.parametrize("stored", ["float16", "bfloat16"])
def test_every_finite_number_of_16_bits_keeps_its_value(tmp_path: Path, stored: str) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    numbers = bits.view(STORED[stored])
    kept = np.where(np.isfinite(numbers.astype(np.float32)), bits, 0).astype(np.uint16)
    engine = device_engine(tmp_path, stored, [kept.size])
    b = kept if stored == "bfloat16" else kept.view(np.float16)
    pair = Pair("p", np.zeros((1, NUM_IN), np.float32), b[:, None], 1.0)
    [held] = adapter_matrices(Adapter(engine, {0: pair}, b"key"))
    assert held is not None
    np.testing.assert_array_equal(held[1][:, 0], kept)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("which", ["A", "B"])
@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("on_device", [False, True])
def test_elements_that_are_not_finite_are_refused_by_name(
    tmp_path: Path, host_engine: Engine, on_device: bool, stored: str, which: str, value: float
) -> None:
    engine = device_engine(tmp_path, "bfloat16") if on_device else host_engine
    _, shapes = adapter_shapes(engine)
    pairs = random_pairs(shapes, stored, 8)
    last = max(pairs)
    pairs[last]["AB".index(which)][-1, -1] = value
    message = f"found elements of 'p{last}.lora_{which}.weight' that are not finite: save the adapter again"
    with pytest.raises(EngineError, match=message):
        made(engine, pairs)


def pair(rank: int = 2, num_in: int = NUM_IN, num_out: int = 5, rank_of_b: int | None = None) -> Pair:
    return Pair("p", np.ones((rank, num_in), np.float32), np.ones((num_out, rank_of_b or rank), np.float32), 1.0)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ({2: pair()}, "expected projection numbers below 2, found 2"),
        ({-1: pair()}, "expected projection numbers below 2, found -1"),
        ({0: pair(25)}, "expected a rank of 1 to 24, found 25: .* --max_lora_rank"),
        ({0: pair(num_in=12)}, r"expected A of extents \[2, 13\], found \[2, 12\]"),
        ({0: pair(num_out=6)}, r"expected B of extents \[5, 2\], found \[6, 2\]"),
        ({0: pair(rank_of_b=3)}, r"expected B of extents \[5, 2\], found \[5, 3\]"),
        ({0: Pair("p", np.ones((2, NUM_IN)), np.ones((5, 2)), 1.0)}, "expected matrices of float32, float16"),
    ],
)
def test_what_the_engine_lacks_is_refused(tmp_path: Path, pairs: dict[int, Pair], message: str) -> None:
    with pytest.raises(LimitError, match=message):
        Adapter(device_engine(tmp_path, "bfloat16"), pairs, b"key")
