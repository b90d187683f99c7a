"""8-bit activations: the nodes that quantize them, the pass that fuses these, and onnxruntime's arithmetic."""

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from tests.plugins.harness import run
from tests.unit.builder.networks import network
from trtllm_lite.builder.graph import operands
from trtllm_lite.builder.pipeline import run_passes
from trtllm_lite.quantize.activations import LARGEST, quantize_per_tensor, quantize_per_token, recognise
from trtllm_lite.quantize.network import Recipe, quantize_network

FEATURES = 70


def rounding(to: str, scale: float | None) -> ir.Model:
    """A network of y = x rounded to ``to``, with ``scale`` or, if None, one scale for each token."""
    x, y = (
        ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["batch", "seq", FEATURES]))
        for name in ("x", "y")
    )
    identity = ir.node("Identity", [x], outputs=[y])
    graph = ir.Graph([x], [y], nodes=[identity], opset_imports={"": 24}, name="rounding")
    rounded = quantize_per_token(graph, x, to) if scale is None else quantize_per_tensor(graph, x, to, scale)
    identity.replace_input_with(0, rounded)
    return ir.Model(graph, ir_version=12)


def activations() -> np.ndarray:
    """Rows of very different magnitudes, values midway between two representable numbers, and a row of zeros."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 9, FEATURES), np.float32) * np.exp2(rng.integers(-12, 8, (2, 9, 1))).astype(np.float32)
    x[0, 0] = np.arange(FEATURES) / 2 - 17
    x[1, 3] = 0
    return x


@pytest.mark.parametrize("to", LARGEST)
@pytest.mark.parametrize("scale", [None, 0.0625, 0.01])
def test_the_kernel_rounds_as_onnxruntime_does(isa: str, to: str, scale: float | None) -> None:
    model = rounding(to, scale)
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    x = activations()
    (expected,) = session.run(None, {"x": x})
    rows = recognise(model.graph[-1].inputs[0])
    assert rows is not None
    given = None if scale is None else np.array([scale], np.float32)
    attributes = {"to": to, "scale_factor": rows.scale_factor, "min_scale": rows.min_scale}
    actual = run("QuantizeRows", [x.reshape(-1, FEATURES), given], attributes, isa=isa)
    product = actual["y"] * actual["y_scale"][:, None]
    np.testing.assert_array_equal(product.reshape(expected.shape), expected)


@pytest.mark.parametrize("variant", ["llama", "gpt2", "cohere"])
def test_products_merge_as_without(variant: str) -> None:
    """Q, K and V merge into one product of quantized rows, gate and up into another."""
    fused, fusions = run_passes(quantize_network(network(variant), Recipe("fp8_rowwise"))[0])
    plain, _ = run_passes(network(variant))
    quantized = [node for node in fused.graph if node.op_type == "QuantizeRows"]
    products = [node for node in fused.graph if "Linear" in node.op_type]
    assert len(products) == sum("Linear" in node.op_type for node in plain.graph)
    readers = {operands(node)["x"]: node for node in products if "x_scale" in operands(node)}
    assert set(readers) == {node.outputs[0] for node in quantized}
    assert any(fusion.pass_name == "quantize_rows" and fusion.fused for fusion in fusions)


@pytest.mark.parametrize("change", ["axis", "block_size", "scale", "zero_point"])
def test_another_rounding_is_not_recognised(change: str) -> None:
    model = rounding("int8", None)
    rounded = model.graph[-1].inputs[0]
    dequantize = rounded.producer()
    quantize = dequantize.inputs[0].producer()
    if change in ("axis", "block_size"):
        for node in (quantize, dequantize):
            node.attributes[change] = ir.AttrInt64(change, 1)
    elif change == "scale":
        quantize.replace_input_with(1, model.graph.inputs[0])
    else:
        zero_point = ir.Value(name="z", const_value=ir.tensor(np.array(3, np.int8)))
        model.graph.register_initializer(zero_point)
        quantize.resize_inputs(3)
        quantize.replace_input_with(2, zero_point)
    assert recognise(rounded) is None
