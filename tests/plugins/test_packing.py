"""plugins/packing.py against the layouts' definition in plugins/README.md."""

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir
import pytest

from trtllm_lite.common.nibbles import paired
from trtllm_lite.plugins.packing import pack, packed_shape, unpack
from trtllm_lite.plugins.spread import gathered

DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]


def numbered(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """Distinct bit patterns as far as the type has them; never zero, so that padding can be told apart."""
    bits = np.dtype(f"u{np.dtype(dtype).itemsize}")
    return (np.arange(np.prod(shape)) % (np.iinfo(bits).max - 1) + 1).astype(bits).reshape(shape).view(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("features", [1, 63, 64, 65, 200])
def test_panel64(dtype: type, features: int) -> None:
    array = numbered((features, 5), dtype)
    packed = pack(array, "panel64")
    assert packed.shape == packed_shape(array.shape, "panel64") == (-(-features // 64), 5, 64)
    assert packed.dtype == array.dtype
    assert packed.flags.c_contiguous
    bits = packed.view(f"u{array.dtype.itemsize}")
    for panel, lane in np.ndindex(packed.shape[0], 64):
        feature = panel * 64 + lane
        expected = array.view(bits.dtype)[feature] if feature < features else np.zeros(5)
        np.testing.assert_array_equal(bits[panel, :, lane], expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("features", [1, 31, 32, 33, 100])
def test_gated_panel64(dtype: type, features: int) -> None:
    array = numbered((2, features, 3), dtype)
    packed = pack(array, "gated_panel64")
    assert packed.shape == packed_shape(array.shape, "gated_panel64") == (-(-features // 32), 3, 64)
    bits = packed.view(f"u{array.dtype.itemsize}")
    for panel, half, lane in np.ndindex(packed.shape[0], 2, 32):
        feature = panel * 32 + lane
        expected = array.view(bits.dtype)[half, feature] if feature < features else np.zeros(3)
        np.testing.assert_array_equal(bits[panel, :, half * 32 + lane], expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((7, 9), "row_major"),
        ((130, 9), "panel64"),
        ((2, 70, 9), "gated_panel64"),
        ((3, 130, 9), "panel64"),
        ((3, 2, 70, 9), "gated_panel64"),
    ],
)
def test_unpack_inverts_pack(dtype: type, shape: tuple[int, ...], layout: str) -> None:
    array = numbered(shape, dtype)
    unpacked = unpack(pack(array, layout), layout, shape, dtype)
    assert unpacked.dtype == array.dtype
    np.testing.assert_array_equal(unpacked.view(np.uint8), array.view(np.uint8))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "layout"), [((3, 130, 9), "panel64"), ((3, 2, 70, 9), "gated_panel64")])
def test_experts_lie_one_behind_the_other(dtype: type, shape: tuple[int, ...], layout: str) -> None:
    array = numbered(shape, dtype)
    packed = pack(array, layout)
    assert packed.shape == packed_shape(shape, layout) == (3, 3, 9, 64)
    assert packed.dtype == array.dtype
    assert packed.tobytes() == b"".join(pack(matrix, layout).tobytes() for matrix in array)


def test_pack_takes_strided_views() -> None:
    array = np.arange(70 * 12, dtype=np.float32).reshape(12, 70).T
    np.testing.assert_array_equal(pack(array, "panel64"), pack(np.ascontiguousarray(array), "panel64"))


@pytest.mark.parametrize(
    ("shape", "layout"),
    [((3, 4, 5), "gated_panel64"), ((4,), "panel64"), ((4, 4), "panel32"), ((4, 4), "gated_panel64")],
)
def test_shapes_that_do_not_fit(shape: tuple[int, ...], layout: str) -> None:
    with pytest.raises(ValueError, match="cannot hold"):
        packed_shape(shape, layout)


def test_unpack_of_another_shape() -> None:
    with pytest.raises(ValueError, match=r"stores .* as \(2, 8, 64\), found \(1, 8, 64\)"):
        unpack(np.zeros((1, 8, 64), np.float32), "panel64", (100, 8), np.float32)


NIBBLES = [ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.float4_e2m1fn]


@pytest.mark.parametrize("dtype", NIBBLES)
@pytest.mark.parametrize("shape", [(1, 2), (3, 34), (2, 3, 16)])
def test_rows_of_nibbles_are_stored_as_onnx_has_them(dtype: type, shape: tuple[int, ...]) -> None:
    least = -8 if dtype is ml_dtypes.int4 else 0
    array = np.random.default_rng(0).integers(least, least + 16, shape).astype(np.int8).astype(dtype)
    kind = onnx_ir.DataType.from_numpy(array.dtype)
    packed = pack(array, "row_major")
    assert packed.shape == packed_shape(shape, "row_major", dtype)
    assert packed.tobytes() == onnx_ir.Tensor(array, dtype=kind).tobytes()
    np.testing.assert_array_equal(unpack(packed, "row_major", shape, dtype), array)


@pytest.mark.parametrize("dtype", NIBBLES)
@pytest.mark.parametrize(("shape", "layout"), [((130, 24), "panel64"), ((2, 70, 40), "gated_panel64")])
def test_panels_of_nibbles_are_panels_of_words(dtype: type, shape: tuple[int, ...], layout: str) -> None:
    array = np.random.default_rng(0).integers(0, 8, shape, np.int8).astype(dtype)
    packed = pack(array, layout)
    assert packed.shape == packed_shape(shape, layout, dtype)
    words = paired(array).view(np.uint32)
    np.testing.assert_array_equal(packed.view(np.uint32), pack(words, layout))
    np.testing.assert_array_equal(unpack(packed, layout, shape, dtype), array)


@pytest.mark.parametrize(("shape", "layout"), [((4, 3), "row_major"), ((64, 12), "panel64"), ((64, 16), "mma_k16")])
def test_nibbles_that_fill_no_word(shape: tuple[int, int], layout: str) -> None:
    with pytest.raises(ValueError, match="cannot hold an array of int4"):
        packed_shape(shape, layout, ml_dtypes.int4)


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4])
def test_pairs_of_32_elements_are_in_the_order_of_the_tensor_cores(dtype: type) -> None:
    codes = np.random.default_rng(1).integers(0, 16, (3, 64), np.uint8)
    packed = pack(codes.view(dtype), "pairs32")
    assert packed.shape == packed_shape(codes.shape, "pairs32", dtype)
    for row, words in zip(codes, packed.view("<u4"), strict=True):
        for number, word in enumerate(words):
            first = number // 4 * 32 + number % 4 * 2
            pairs = [[word >> 4 * (pair + 4 * half) & 15 for half in (0, 1)] for pair in range(4)]
            assert pairs == [row[first + 8 * pair :][:2].tolist() for pair in range(4)]
    unpacked = unpack(packed, "pairs32", codes.shape, dtype).view(np.uint8)
    np.testing.assert_array_equal(unpacked & 15, codes)


def bit_places(layout: str) -> list[list[int]]:
    """The places of each element's bits in a word, lowest first, from README.md and ``cuda/small_floats.cuh``."""
    if layout == "spread_e4m3":
        first, second = [4, 5, 6, 7, 8, 9, 10, 15], [0, 1, 2, 3, 12, 13, 14, 11]
        return [[bit + 16 * half for bit in bits] for bits in (first, second) for half in (0, 1)]
    pairs = [[6, 7, 8, 15], [2, 3, 4, 11], [28, 29, 30, 5], [0, 1, 10, 9]]
    return [[(bit + 16 * half) % 32 for bit in bits] for bits in pairs for half in (0, 1)]


@pytest.mark.parametrize(
    ("layout", "dtype", "order"),
    [
        ("spread_e4m3", ml_dtypes.float8_e4m3fn, [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15]),
        (
            *("spread_e2m1", ml_dtypes.float4_e2m1fn),
            [q + k for q in (0, 2, 4, 6) for k in (0, 1, 8, 9, 16, 17, 24, 25)],
        ),
    ],
)
def test_bits_are_spread(layout: str, dtype: type, order: list[int]) -> None:
    width, (shape, count) = (8, ((2, 3, 32), 4)) if layout == "spread_e4m3" else (4, ((2, 3, 32), 8))
    codes = np.random.default_rng(0).integers(0, 1 << width, shape, np.uint8)
    packed = pack(codes.view(dtype), layout)
    assert packed.shape == packed_shape(shape, layout, dtype)
    in_order = codes.reshape(-1, len(order))[:, order].reshape(-1, count)
    expected = [
        sum(
            (int(code) >> bit & 1) << place
            for code, places in zip(word, bit_places(layout), strict=True)
            for bit, place in enumerate(places)
        )
        for word in in_order
    ]
    assert packed.reshape(-1).view("<u4").tolist() == expected
    np.testing.assert_array_equal(unpack(packed, layout, shape, dtype).view(np.uint8), codes)


def test_made_up_words_of_e4m3_are_moderate_numbers() -> None:
    """Engines without weights fill the kernels' layout with words whose fixed bits random_values.cc defines."""
    source = (Path(__file__).parents[2] / "trtllm_lite" / "csrc" / "cuda" / "device" / "random_values.cc").read_text()
    ones, zeros = (
        int(re.search(rf"{name} = (0x[0-9a-f]{{8}})", source)[1], 16) for name in ("kSpreadHighest", "kSpreadSecond")
    )
    words = np.random.default_rng(0).integers(0, 1 << 32, 4096, dtype=np.uint32) & ~np.uint32(zeros) | np.uint32(ones)
    found = gathered(words.view(np.uint8), "spread_e4m3").view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert np.abs(found).min() == 2
    assert np.abs(found).max() == 30
    assert abs(found.mean()) < 0.5
