"""Standard ONNX of block-wise weights: recognised matrices have the values that onnxruntime computes, bit for bit."""

from collections.abc import Mapping

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper

from tests.unit.builder.networks import Shape, network
from trtllm_lite.builder.pipeline import run_passes
from trtllm_lite.errors import BuildError
from trtllm_lite.quantize.formats import FORMATS, Int4
from trtllm_lite.quantize.formats.dequantization import dequantized
from trtllm_lite.quantize.network import Recipe, quantize_network

ROWS, DEPTH, BLOCK = 6, 64, 16
TYPES = {
    "int4": (ml_dtypes.int4, -8, 16),
    "uint4": (ml_dtypes.uint4, 0, 16),
    "int8": (np.int8, -128, 256),
    "uint8": (np.uint8, 0, 256),
}
EVEN = Shape(hidden=32, heads=4, head_dim=16, inter=48)
RNG = np.random.default_rng(0)


def elements(dtype: str, *shape: int) -> np.ndarray:
    kind, least, count = TYPES[dtype]
    return (RNG.integers(0, count, shape) + least).astype(np.int16).astype(kind)


def model_of(nodes: list[onnx.NodeProto], tensors: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """A model without inputs that makes y [ROWS, DEPTH]."""
    kept = [ir.to_proto(ir.Tensor(array, name=name)) for name, array in tensors.items()]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [ROWS, DEPTH])
    graph = helper.make_graph(nodes, "g", [], [y], kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=12)


def check(model: onnx.ModelProto, exact: bool = True) -> None:
    """Check that the recognised matrix has the values that onnxruntime computes."""
    inferred = ir.from_proto(onnx.shape_inference.infer_shapes(model, data_prop=True))
    found = [matrix for known in FORMATS if (matrix := known.recognise(inferred.graph.outputs[0])) is not None]
    assert len(found) == 1
    matrix = found[0]
    actual = matrix.format.dequantize({operand: matrix.tensor(operand).numpy() for operand in matrix.operands})
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(["y"], {})
    np.testing.assert_allclose(actual, expected, rtol=0 if exact else 1e-6, atol=0 if exact else 1e-6)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("blocks", ["matrix", "rows", "blocks"])
@pytest.mark.parametrize("with_zero_points", [False, True])
def test_zero_points_become_offsets(dtype: str, blocks: str, with_zero_points: bool) -> None:
    shape = {"matrix": (), "rows": (ROWS,), "blocks": (ROWS, DEPTH // BLOCK)}[blocks]
    attributes = {"matrix": {}, "rows": {"axis": 0}, "blocks": {"axis": 1, "block_size": BLOCK}}[blocks]
    # The scales are float16 values, whose products with 8-bit numbers are exact in float32.
    scale = RNG.uniform(0.1, 1, shape).astype(np.float16).astype(np.float32)
    tensors = {"w": elements(dtype, ROWS, DEPTH), "s": np.asarray(scale)}
    if with_zero_points:
        tensors["z"] = elements(dtype, *shape)
    check(model_of([helper.make_node("DequantizeLinear", list(tensors), ["y"], **attributes)], tensors))


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int8"])
@pytest.mark.parametrize("kind", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(("blocks", "offset"), [(1, False), (1, True), (4, False), (4, True)])
def test_what_is_expressed_is_recognised(dtype: str, kind: type, blocks: int, offset: bool) -> None:
    tensor = {"w": np.zeros((ROWS, DEPTH), np.float32)}
    graph = ir.from_proto(model_of([helper.make_node("Identity", ["w"], ["y"])], tensor))
    node = next(iter(graph.graph))
    numbers = RNG.uniform(0.1, 1, (ROWS, blocks)).astype(kind)
    tensors = {"weight": ir.Tensor(elements(dtype, ROWS, DEPTH)), "weight_scale": ir.Tensor(numbers)}
    if offset:
        tensors["weight_offset"] = ir.Tensor(-numbers)
    node.replace_input_with(0, dequantized(graph.graph, node, "m", tensors))
    proto = ir.to_proto(graph)
    source = next(node.input[0] for node in proto.graph.node if node.op_type == "Identity")
    for made in proto.graph.node:
        made.output[:] = ["y" if name == source else name for name in made.output]
    proto.graph.node.remove(next(node for node in proto.graph.node if node.op_type == "Identity"))
    check(proto, exact=kind is not np.float32)


def test_groups_that_do_not_fit() -> None:
    message = r"^layers\.0\.attention\.q_proj has rows of 32 weights, and int4_wo .* --group_size 32"
    with pytest.raises(BuildError, match=message):
        quantize_network(network(EVEN), Recipe("int4_wo"))
    with pytest.raises(BuildError, match=r"rows of 36 weights.* pass --qformat int8_wo"):
        quantize_network(network("llama"), Recipe("int4_wo"))
    with pytest.raises(BuildError, match="groups of 4: expected a multiple of 8"):
        quantize_network(network(EVEN), Recipe("int4_wo", group_size=4))


def test_matrices_of_other_blocks_are_not_merged() -> None:
    forms = []
    for group_size in (8, 16):
        fused, _ = run_passes(quantize_network(network(EVEN), Recipe("int4_wo", group_size=group_size))[0])
        weights = fused.graph.initializers
        scale = next(weights[name] for name in weights if name.endswith("qkv_proj.weight_scale"))
        forms.append(scale.shape[-1])
    assert forms[0] == 2 * forms[1]


def test_half_a_step_of_four_bits() -> None:
    matrix = RNG.standard_normal((3, 96)).astype(np.float32)
    tensors = Int4(32).pack(matrix)
    assert tensors["weight"].dtype == ml_dtypes.int4
    off = np.abs(Int4(32).dequantize(tensors) - matrix).reshape(3, 3, 32)
    assert (off <= tensors["weight_scale"][..., None] * 0.50001).all()
