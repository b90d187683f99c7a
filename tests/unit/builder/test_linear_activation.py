from pathlib import Path

from tests.unit.builder.networks import network
from tests.unit.builder.structure import find, operators, run_until, set_attribute, set_input
from tests.unit.builder.test_shared_experts import network_of
from trtllm_lite.builder.graph import operands


def test_an_activation_goes_into_the_linear_before_it() -> None:
    model, decisions = run_until("linear_activation", "gpt2")
    assert operators(model)["Gelu"] == 0
    assert [(d.site, d.fused) for d in decisions] == [("layers.0.mlp.gelu", True), ("layers.1.mlp.gelu", True)]
    node = find(model, "layers.0.mlp.up_proj")
    assert node.attributes["activation"].value == "gelu_tanh"
    assert operands(node).keys() == {"x", "weight", "bias"}
    assert find(model, "layers.0.mlp.down_proj").attributes["activation"].value == "none"


def test_the_exact_gelu_is_told_apart() -> None:
    model = set_attribute(network("gpt2"), "layers.0.mlp.gelu", approximate="none")
    result, _ = run_until("linear_activation", model)
    assert find(result, "layers.0.mlp.up_proj").attributes["activation"].value == "gelu"


def test_rows_that_something_else_reads_stay() -> None:
    model = set_input(network("gpt2"), "layers.0.mlp.down_proj", 0, "layers.0.mlp.up_proj.bias_out")
    model = set_input(model, "layers.1.mlp.gelu", 0, "layers.0.mlp.up_proj.bias_out")
    result, decisions = run_until("linear_activation", model)
    assert operators(result)["Gelu"] == 1
    reason = "it is not the only reader of layers.0.mlp.up_proj"
    assert [d.reason for d in decisions if not d.fused] == [reason]


def test_a_gate_goes_into_the_gated_product() -> None:
    model, decisions = run_until("linear_activation", "llama")
    assert decisions == []
    assert operators(model)["GatedLinear"] == 2


def test_the_square_of_relu_goes_into_the_linear_before_it(tmp_path: Path) -> None:
    """Nemotron-H has it in the shared expert of a mixture, and in an MLP."""
    model, decisions = run_until("linear_activation", network_of("nemotron_h", tmp_path))
    sites = ["layers.1.mlp.shared_expert.relu.squared", "layers.4.mlp.relu.squared"]
    assert [(d.site, d.fused) for d in decisions] == [(site, True) for site in sites]
    assert operators(model)["Relu"] == 0
    assert find(model, "layers.1.mlp.shared_expert.up_proj").attributes["activation"].value == "relu2"
    assert find(model, "layers.4.mlp.up_proj").attributes["activation"].value == "relu2"


def test_a_relu_that_something_else_reads_stays(tmp_path: Path) -> None:
    model = network_of("nemotron_h", tmp_path)
    model = set_input(model, "layers.4.mlp.down_proj", 0, find(model, "layers.4.mlp.relu").outputs[0])
    result, decisions = run_until("linear_activation", model)
    assert operators(result)["Relu"] == 1
    assert [d.site for d in decisions] == ["layers.1.mlp.shared_expert.relu.squared"]
