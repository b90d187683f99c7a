"""Runs one kernel of one instruction set against its numpy reference, on poisoned outputs."""

from collections.abc import Mapping, Sequence

import ml_dtypes
import numpy as np
import pytest

from tests import tolerances
from trtllm_lite import _core, _testing
from trtllm_lite.plugins.packing import pack
from trtllm_lite.plugins.schema import all_schemas

ISAS = ("amx", "avx512", "avx2", "portable")
# Instruction sets with a unit for bfloat16 products, and the types of weights for which it is not used.
ISAS_OF_BFLOAT16 = ("amx",)
NOT_BFLOAT16 = (np.float32, np.float16)
# Weights that instruction sets of ISAS_OF_BFLOAT16 multiply with activations in fixed point, in blocks up to this size.
OF_FIXED_POINT, MAX_FIXED_BLOCK = (ml_dtypes.int4, ml_dtypes.uint4), 128
_FIRST_VALUES = {"float32": (np.nan, np.float32), "int32": (-1, np.int32), "int64": (0, np.int64)}
WEIGHT_DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> str:
    """Every instruction set; tests of those that this machine lacks are skipped."""
    if request.param not in _testing.supported_isas():
        pytest.skip(f"this machine does not support {request.param}")
    return request.param


def raw(array: np.ndarray | None) -> np.ndarray | None:
    """Return ``array`` for ``run_kernel``: as integers of the same bits if numpy lacks its type."""
    foreign = array is not None and array.dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn)
    return array.view(f"u{array.dtype.itemsize}") if array is not None and foreign else array


def dtypes_of(arrays: Sequence[np.ndarray | None]) -> list[str]:
    """Names of dtypes for ``run_kernel``, to which :func:`raw` may give bits; empty for absent operands."""
    return ["" if array is None else array.dtype.name for array in arrays]


def packed(op: str, arrays: Sequence[np.ndarray | None], layout: str) -> tuple[list[np.ndarray | None], list[str]]:
    """``arrays`` with the weight, its scales and its offsets stored in ``layout``, and the layout of each array."""
    names = [argument.name for argument in all_schemas()[op].inputs]
    layouts = [layout if name.startswith("weight") else "row_major" for name in names]
    stored = [None if array is None else pack(array, kind) for array, kind in zip(arrays, layouts, strict=True)]
    return stored, layouts


def run(
    op: str,
    inputs: Sequence[np.ndarray | None],
    attributes: Mapping[str, float] | None = None,
    *,
    isa: str = "auto",
    num_threads: int = 2,
    layout: str = "row_major",
    without: Sequence[str] = (),
) -> dict[str, np.ndarray]:
    """Run a kernel; returns its outputs by name.

    ``layout`` packs the weight and its scales; ``without`` names optional outputs to leave out.
    Outputs start as NaN, integers as -1, and state that is kept between steps as 0; aliased outputs are copies of
    their inputs, updated in place.
    """
    schema = all_schemas()[op]
    attributes = dict(attributes or {})
    inputs = padded(op, inputs)
    arrays = list(inputs)
    for argument in schema.outputs:
        if argument.alias:
            arrays[schema.input_index(argument.alias)] = arrays[schema.input_index(argument.alias)].copy()
    outputs: dict[str, np.ndarray] = {}
    shapes = _output_shapes(op, inputs, attributes)
    for argument, shape in zip(schema.outputs, shapes, strict=True):
        if argument.alias:
            outputs[argument.name] = arrays[schema.input_index(argument.alias)]
        elif argument.name not in without:
            outputs[argument.name] = np.full(shape, *_FIRST_VALUES[argument.dtypes[0]])
    stored, layouts = packed(op, arrays, layout)
    _core.run_kernel(
        op,
        [raw(array) for array in stored],
        [raw(outputs.get(argument.name)) for argument in schema.outputs],
        attributes,
        layouts=layouts,
        dtypes=dtypes_of(arrays),
        isa=isa,
        num_threads=num_threads,
        product_dtype=product_dtype(isa),
    )
    return outputs


def product_dtype(isa: str) -> str:
    """The type to which an instruction set may round activations: bfloat16 if it has a unit for bfloat16 products."""
    return "bfloat16" if isa in ISAS_OF_BFLOAT16 else "float32"


def as_multiplied(inputs: Sequence[np.ndarray | None], isa: str) -> list[np.ndarray | None]:
    """The operands of a product, with x rounded as the kernels of ``isa`` round it."""
    x, weight, *others = inputs
    assert x is not None
    assert weight is not None
    if product_dtype(isa) == "bfloat16" and weight.dtype not in NOT_BFLOAT16:
        scale = others[0]
        block = x.shape[-1] if scale is None else x.shape[-1] // scale.shape[-1]
        if weight.dtype in OF_FIXED_POINT and block <= MAX_FIXED_BLOCK:
            x = in_fixed_point(x, block)
        else:
            x = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    return [x, weight, *others]


def in_fixed_point(x: np.ndarray, block: int) -> np.ndarray:
    """Round each block of x to integers times a power of two: the least power that keeps the integers in range."""
    blocks = x.reshape(-1, block).astype(np.float64)
    largest = min(127 * 256 + 127, 2**24 // (15 * block) - 128)
    scale = 2.0 ** np.ceil(np.log2(np.abs(blocks).max(1, keepdims=True) / largest))
    return (np.rint(blocks / scale) * scale).reshape(x.shape).astype(np.float32)


def padded(op: str, inputs: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
    """``inputs``, followed by None for each omitted optional input."""
    return [*inputs, *[None] * (len(all_schemas()[op].inputs) - len(inputs))]


def _output_shapes(op: str, inputs: Sequence[np.ndarray | None], attributes: Mapping[str, float]) -> list[tuple]:
    """Extents of the outputs, by binding the schema's symbols to the inputs."""
    schema = all_schemas()[op]
    bound: dict[str, int] = {}
    for argument, array in zip(schema.inputs, inputs, strict=True):
        if array is not None:
            bound.update({s: n for s, n in zip(argument.shape, array.shape, strict=True) if isinstance(s, str)})
    if op == "PagedAttention":
        bound["y_features"] = int(attributes["num_heads"]) * bound["head_dim"]
        bound["stored_features"] = 2 * bound["num_kv_heads"] * bound["head_dim"]
    if op == "LatentAttention":
        bound["y_features"] = bound["num_heads"] * bound["value_dim"]
    if op == "GatedDeltaRule":
        bound["y_features"] = bound["value_heads"] * int(attributes["value_dim"])
    if op == "Mamba2":
        bound["y_features"] = bound["num_heads"] * int(attributes["value_dim"])
    if op == "Router":
        bound["chosen"] = int(attributes["top_k"]) + int(attributes["num_shared"])
        bound["tallied"] = int(attributes["local_experts"]) + 3
    if op == "GroupedGatedLinear":
        bound["out_features"] = bound["matrix_features"] * (1 + int(attributes["self_gated"]))
    if op == "MergeRows":
        merged = int(attributes["merged"])
        bound["num_image_rows"], bound["y_features"] = bound["num_tokens"] // merged, bound["x_features"] * merged
    if op == "RaggedAttention":
        bound["y_features"] = int(attributes["num_heads"] * attributes["head_dim"])
    if "num_seqs_plus_1" in bound:
        bound.setdefault("num_seqs", bound["num_seqs_plus_1"] - 1)
    return [tuple(bound[s] if isinstance(s, str) else s for s in argument.shape) for argument in schema.outputs]


def reference(op: str, inputs: Sequence[np.ndarray | None], attributes: Mapping[str, float] | None = None) -> dict:
    """Outputs of the operator's ``reference.py``, by name."""
    schema = all_schemas()[op]
    outputs = schema.part("reference").reference(padded(op, inputs), dict(attributes or {}))
    return {argument.name: array for argument, array in zip(schema.outputs, outputs, strict=True)}


def assert_close(actual: np.ndarray, expected: np.ndarray, dtype: str = "float32") -> None:
    """Check a kernel's result by both gates of ``tests/tolerances.py``; non-finite values fail."""
    assert actual.dtype == expected.dtype
    tolerances.assert_close(actual, expected, dtype, what="output", table=tolerances.KERNEL_TOLERANCES)


def assert_same_bits(actual: np.ndarray, expected: np.ndarray) -> None:
    """Compare bit for bit."""
    np.testing.assert_array_equal(actual.view(np.uint32), expected.view(np.uint32))
