import onnx_ir as ir
import pytest

from tests.unit.builder.networks import network
from tests.unit.builder.structure import find, find_value, operators, run_until, set_input
from trtllm_lite.builder.graph import dims, operands


@pytest.mark.parametrize(("variant", "dtype"), [("llama", "FLOAT"), ("bfloat16", "BFLOAT16"), ("float16", "FLOAT16")])
def test_product_transpose_and_cast_become_linear(variant: str, dtype: str) -> None:
    model, decisions = run_until("linear", variant)
    counts = operators(model)
    assert counts["Linear"] == len(decisions) == 15
    assert counts["MatMul"] == 0
    node = find(model, "layers.0.mlp.down_proj")
    assert [value.name for value in node.inputs] == [
        "layers.0.mlp.mul_out",
        "model.layers.0.mlp.down_proj.weight",
    ]
    assert node.inputs[1].dtype == ir.DataType[dtype]
    assert dims(node.outputs[0]) == ("num_tokens", 36)


def test_a_bias_goes_in_and_a_residual_does_not() -> None:
    model, _ = run_until("linear", "qwen2")
    with_bias = [node.name for node in model.graph if node.op_type == "Linear" and "bias" in operands(node)]
    assert with_bias == [f"layers.{i}.attention.{kind}_proj" for i in range(2) for kind in "qkv"]
    assert find(model, "layers.0.mlp.add").op_type == "Add"


def test_tied_weights_stay_one_initializer() -> None:
    model, _ = run_until("linear", "llama")
    users = {use.node.op_type for use in find_value(model, "model.embed_tokens.weight").uses()}
    assert users == {"Embedding", "Linear"}


def test_a_product_without_a_transposed_weight_stays() -> None:
    model = network("llama")
    stored = model.graph.initializers["model.layers.0.self_attn.o_proj.weight"]
    weight = ir.tensor(stored.const_value.numpy().T.copy(), name="untransposed")
    value = ir.Value(name="untransposed", type=stored.type, shape=ir.Shape(weight.shape), const_value=weight)
    model.graph.register_initializer(value)
    result, decisions = run_until("linear", set_input(model, "layers.0.attention.o_proj", 1, value))
    assert operators(result)["MatMul"] == 1
    assert [d.site for d in decisions if not d.fused] == ["layers.0.attention.o_proj"]
