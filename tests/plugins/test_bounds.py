"""No kernel touches memory past the end of an operand: every operand ends where an unreadable page begins.

An over-read here is a segmentation fault, not an assertion.
"""

import ctypes
import mmap

import ml_dtypes
import numpy as np
import pytest

from tests.plugins.harness import (
    WEIGHT_DTYPES,
    assert_same_bits,
    dtypes_of,
    packed,
    padded,
    product_dtype,
    raw,
    run,
)
from tests.plugins.paged_batch import AttentionShape, PagedCache, Tokens
from trtllm_lite import _core
from trtllm_lite.plugins.schema import all_schemas

PROT_NONE = 0
LIBC = ctypes.CDLL(None, use_errno=True)


def guarded(array: np.ndarray | None) -> np.ndarray | None:
    """A copy whose last byte is the last of a readable page."""
    if array is None:
        return None
    size = -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, size + mmap.PAGESIZE)
    guard = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + size
    assert LIBC.mprotect(ctypes.c_void_p(guard), mmap.PAGESIZE, PROT_NONE) == 0
    copy = np.frombuffer(memory, array.dtype, array.size, offset=size - array.nbytes).reshape(array.shape)
    copy[...] = array
    return copy


def run_guarded(op: str, inputs: list, attributes: dict, layout: str, isa: str) -> dict[str, np.ndarray]:
    """Like ``harness.run``, on guarded copies of all operands."""
    inputs = padded(op, inputs)
    expected = run(op, inputs, attributes, isa=isa, layout=layout)
    schema = all_schemas()[op]
    stored, layouts = packed(op, inputs, layout)
    arrays = [guarded(raw(array)) for array in stored]
    outputs = {
        o.name: arrays[schema.input_index(o.alias)] if o.alias else guarded(np.full_like(expected[o.name], np.nan))
        for o in schema.outputs
    }
    kinds = {"layouts": layouts, "dtypes": dtypes_of(inputs)}
    _core.run_kernel(
        op,
        arrays,
        list(outputs.values()),
        attributes,
        **kinds,
        isa=isa,
        num_threads=2,
        product_dtype=product_dtype(isa),
    )
    for name, array in outputs.items():
        assert_same_bits(array, expected[name])
    return outputs


@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
@pytest.mark.parametrize("rows", [1, 7, 40])
def test_products(isa: str, dtype: str, rows: int) -> None:
    x = np.ones((rows, 131), np.float32)
    weight = np.ones((2, 70, 131), WEIGHT_DTYPES[dtype])
    run_guarded("Linear", [x, weight[0], None, np.ones(70, np.float32)], {"activation": "gelu"}, "panel64", isa)
    gated = [x, weight, None, np.ones((2, 70), np.float32)]
    run_guarded("GatedLinear", gated, {"activation": "silu"}, "gated_panel64", isa)


@pytest.mark.parametrize("rows", [1, 7, 40])
def test_products_of_int8(isa: str, rows: int) -> None:
    x = np.ones((rows, 131), np.float32)
    weight, scale = np.ones((2, 70, 131), np.int8), np.ones((2, 70, 1), np.float32)
    run_guarded("Linear", [x, weight[0], scale[0]], {"activation": "gelu"}, "panel64", isa)
    run_guarded("GatedLinear", [x, weight, scale], {"activation": "silu"}, "gated_panel64", isa)


@pytest.mark.parametrize("rows", [1, 7, 40])
@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4])
def test_products_of_nibbles(isa: str, dtype: type, rows: int) -> None:
    x = np.ones((rows, 72), np.float32)
    weight, scale = np.ones((2, 70, 72), dtype), np.ones((2, 70, 9), np.float16)
    absent = (None, None)
    run_guarded("Linear", [x, weight[0], scale[0], *absent, scale[0]], {"activation": "gelu"}, "panel64", isa)
    run_guarded("GatedLinear", [x, weight, scale, *absent, scale], {"activation": "silu"}, "gated_panel64", isa)


@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
@pytest.mark.parametrize("layout", ["row_major", "panel64"])
def test_embedding(isa: str, dtype: str, layout: str) -> None:
    weight = np.ones((64, 5), WEIGHT_DTYPES[dtype])
    run_guarded("Embedding", [np.array([0, 63], np.int32), weight], {"scale": 2.0}, layout, isa)


@pytest.mark.parametrize("layout", ["row_major", "panel64"])
def test_embedding_of_nibbles(isa: str, layout: str) -> None:
    weight, scale = np.ones((64, 24), ml_dtypes.int4), np.ones((64, 3), np.float16)
    run_guarded("Embedding", [np.array([0, 63], np.int32), weight, scale, scale], {"scale": 2.0}, layout, isa)


def test_row_operators(isa: str) -> None:
    x = np.ones((3, 21), np.float32)
    run_guarded("RmsNorm", [x, x[0], x], {"epsilon": 1e-5}, "row_major", isa)
    run_guarded("QueryKeyNorm", [x, x[0, :9], x[0, :5]], {"epsilon": 1e-5}, "row_major", isa)
    run_guarded("HeadLayerNorm", [x, x[:2, :7].copy()], {"epsilon": 1e-5}, "row_major", isa)
    mixing = [np.ones((4, 21), np.float32), np.ones((5, 4, 5), np.float32)]
    run_guarded("MixStreams", [x, x, x, x, None, *mixing], {"epsilon": 1e-5}, "row_major", isa)
    run_guarded("MixStreams", [x, x, x, x, x, *mixing, x, x[0]], {"epsilon": 1e-5}, "row_major", isa)
    run_guarded("RescaleRows", [x, x], {"least": 1e-5}, "row_major", isa)
    run_guarded("CutRows", [x], {"factor": 1.5}, "row_major", isa)
    run_guarded("LayerNorm", [x, x[0], x, x[0]], {"epsilon": 1e-5}, "row_major", isa)
    run_guarded("PositionEmbedding", [x, np.arange(3, dtype=np.int32), x], {}, "row_major", isa)
    run_guarded("GatherRows", [x, np.array([2], np.int32)], {}, "row_major", isa)
    run_guarded("GatherColumns", [x, np.arange(21, dtype=np.int32)[::-1].copy()], {}, "row_major", isa)
    run_guarded("RotaryTable", [np.array([7], np.int32), x[0, :5]], {"scale": 1.0}, "row_major", isa)


def test_paged_rows(isa: str) -> None:
    """The last row of the cache is in use."""
    x, cache = np.ones((3, 21), np.float32), np.ones((2, 16, 21), np.float32)
    places = [np.array([29, 30, 31], np.int32), np.array([0, 3], np.int32), np.array([[0, 1]], np.int32)]
    run_guarded("PagedStore", [x, cache, *places], {}, "row_major", isa)
    run_guarded("PagedStore", [x[:1], cache, *places, np.array([2], np.int32)], {}, "row_major", isa)
    run_guarded("PagedLoad", [cache, np.array([30, 31, 32], np.int32), *places[1:]], {}, "row_major", isa)


@pytest.mark.parametrize("head_dim", [8, 24, 40, 64])
def test_paged_attention(isa: str, head_dim: int) -> None:
    """The last block of the cache is in use up to its last token."""
    shape = AttentionShape(num_heads=2, num_kv_heads=1, head_dim=head_dim, tokens_per_block=16, with_norm=True)
    tokens, cache = Tokens(shape, [48]), PagedCache(shape, num_blocks=3)
    run_guarded("PagedAttention", tokens.inputs(cache, [(0, 48)]), shape.attributes, "row_major", isa)
