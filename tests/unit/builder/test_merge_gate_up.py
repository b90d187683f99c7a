import numpy as np

from tests.unit.builder.networks import network
from tests.unit.builder.structure import find, insert_after, operators, run_until, set_attribute, set_input
from trtllm_lite.builder.graph import dims, operands


def test_gate_up_and_activation_become_one() -> None:
    source = network("llama")
    model, decisions = run_until("merge_gate_up", source)
    assert [(d.site, d.fused) for d in decisions] == [("layers.0.mlp", True), ("layers.1.mlp", True)]
    node = find(model, "layers.0.mlp.gate_up_proj")
    assert node.op_type == "GatedLinear"
    assert dims(node.outputs[0]) == ("num_tokens", 50)
    assert dims(node.inputs[1]) == (2, 50, 36)
    parts = [source.graph.initializers[f"model.layers.0.mlp.{kind}_proj.weight"] for kind in ("gate", "up")]
    np.testing.assert_array_equal(
        node.inputs[1].const_value.numpy(), np.stack([part.const_value.numpy() for part in parts])
    )
    assert not {"Swish", "Mul"} & set(operators(model))


def test_biases_are_stacked_like_weights() -> None:
    source = network("mlp_bias")
    model, _ = run_until("merge_gate_up", source)
    bias = operands(find(model, "layers.1.mlp.gate_up_proj"))["bias"].const_value.numpy()
    parts = [source.graph.initializers[f"model.layers.1.mlp.{kind}_proj.bias"] for kind in ("gate", "up")]
    np.testing.assert_array_equal(bias, np.stack([part.const_value.numpy() for part in parts]))


def test_a_missing_bias_becomes_zeros() -> None:
    model = set_input(network("mlp_bias"), "layers.0.mlp.swish", 0, "layers.0.mlp.gate_proj_out")
    result, _ = run_until("merge_gate_up", model)
    bias = operands(find(result, "layers.0.mlp.gate_up_proj"))["bias"].const_value.numpy()
    assert not bias[0].any()
    assert bias[1].all()


def test_gate_and_up_of_different_inputs_stay() -> None:
    model = set_input(network("llama"), "layers.1.mlp.up_proj", 0, "layers.0.post_norm_out")
    result, decisions = run_until("merge_gate_up", model)
    assert decisions[1].reason == "gate and up read different inputs"
    assert operators(result)["Swish"] == 1


def test_another_activation_stays() -> None:
    model = set_attribute(network("llama"), "layers.0.mlp.swish", alpha=1.702)
    _, decisions = run_until("merge_gate_up", model)
    assert [d.fused for d in decisions] == [False, True]
    assert "alpha 1.70" in decisions[0].reason


def test_something_between_projection_and_product_stays() -> None:
    _, decisions = run_until("merge_gate_up", insert_after(network("llama"), "layers.0.mlp.up_proj_out", "Relu"))
    assert decisions[0].reason == "the up factor does not come straight from a Linear"
