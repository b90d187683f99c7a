"""The passes causal_conv and gated_delta_net: how they change recurrent layers, and what they do not change."""

from collections import Counter
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
from transformers import PreTrainedModel

from tests.models import VOCAB_SIZE, save_tiny_model
from tests.unit.builder.networks import Shape
from tests.unit.builder.recurrent import check_fused_network
from trtllm_lite.builder.graph import attribute, dims, nodes_of, operands
from trtllm_lite.builder.passes import PIPELINE
from trtllm_lite.builder.passes.recurrent_pattern import make_room_for_drafts
from trtllm_lite.builder.pipeline import check_all_fused, run_passes
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.network.functions import FUNCTIONS
from trtllm_lite.network.verifier import load_network
from trtllm_lite.plugins.replay import REPLAYED, ReplayState
from trtllm_lite.plugins.schema import DOMAIN

UNTIL = PIPELINE[: [graph_pass.name for graph_pass in PIPELINE].index("gated_delta_net") + 1]
FUSED = ("CausalConv", "GatedDeltaRule", "GatedRmsNorm")


def _network(
    directory: Path, dtype: str = "float32", family: str = "qwen3_next", **overrides: Any
) -> tuple[PreTrainedModel, ir.Model]:
    model = save_tiny_model(family, directory / "model", **overrides)
    convert_checkpoint(str(directory / "model"), directory / "checkpoint", dtype)
    return model, load_network(directory / "checkpoint")


@pytest.mark.parametrize("family", ["qwen3_next", "kimi_linear"])
def test_nothing_is_left_of_recurrent_layers(family: str, tmp_path: Path) -> None:
    model, fusions = run_passes(_network(tmp_path, family=family)[1], UNTIL)
    found = Counter(node.op_type for node in model.graph)
    assert {op_type: found[op_type] for op_type in FUSED} == dict.fromkeys(FUSED, 2)
    others = [node for node in model.graph if ".recurrent." in str(node.name)]
    assert not {node.op_type for node in others} & {"Conv", "Slice", "Concat"}
    assert not model.functions
    sites = [fusion.site for fusion in fusions if fusion.pass_name == "gated_delta_net" and fusion.fused]
    assert sites == ["layers.0.recurrent.rule", "layers.1.recurrent.rule"]
    assert [value.name for value in model.graph.inputs if "state" in str(value.name)] == [
        *("conv_state.0", "recurrent_state.0", "conv_state.1", "recurrent_state.1"),
    ]


def test_operands_keep_shapes_and_storage(tmp_path: Path) -> None:
    model, _ = run_passes(_network(tmp_path, "bfloat16")[1], UNTIL)
    conv, rule, norm = (nodes_of(model.graph, op_type, DOMAIN)[1] for op_type in FUSED)
    weight = operands(conv)["weight"]
    assert (dims(weight), weight.dtype) == ((124, 4), ir.DataType.BFLOAT16)
    assert (attribute(conv, "activation"), dims(operands(conv)["conv_state"])) == ("silu", ("num_blocks", 4, 124))
    # With room for the tokens that are replayed, and one that is taken back: a multiple of 8.
    size = 10 * 14 + 17 * (10 + 14 + 1) + 1 + 2
    assert dims(operands(rule)["recurrent_state"]) == ("num_blocks", 6, size)
    make_room_for_drafts(model.graph, 5)
    assert dims(operands(conv)["conv_state"]) == dims(conv.outputs[1]) == ("num_blocks", 9, 124)
    assert dims(operands(rule)["recurrent_state"]) == ("num_blocks", 6, size + 5 * (10 + 14 + 1) + 3)
    assert attribute(conv, "taken_back") == attribute(rule, "taken_back") == 6
    assert attribute(rule, "num_key_heads") == 2
    assert attribute(rule, "scale") == pytest.approx(10**-0.5)
    assert operands(norm)["x"] is rule.outputs[0]
    assert attribute(norm, "epsilon") == pytest.approx(1e-5)


def test_decays_of_channels_and_gates_of_sigmoids_keep_their_forms(tmp_path: Path) -> None:
    model, _ = run_passes(_network(tmp_path, family="kimi_linear")[1], UNTIL)
    _, rule, norm = (nodes_of(model.graph, op_type, DOMAIN)[1] for op_type in FUSED)
    assert dims(operands(rule)["a"]) == ("num_tokens", 30)
    assert [dims(operands(rule)[name]) for name in ("a_log", "dt_bias")] == [(3,), (30,)]
    assert dims(operands(rule)["recurrent_state"]) == ("num_blocks", 3, ReplayState(10, 10, 10, REPLAYED, 1).size)
    assert attribute(norm, "activation") == "sigmoid"


def test_layers_with_convolutions_alone(tmp_path: Path) -> None:
    model, fusions = run_passes(_network(tmp_path, family="lfm2")[1])
    check_all_fused(model, fusions)
    assert Counter(node.op_type for node in model.graph)["CausalConv"] == 2
    conv = nodes_of(model.graph, "CausalConv", DOMAIN)[1]
    assert (attribute(conv, "activation"), dims(operands(conv)["conv_state"])) == ("none", ("num_blocks", 3, 60))
    assert [value.name for value in model.graph.inputs if "state" in str(value.name)] == [
        "conv_state.0",
        "conv_state.1",
    ]


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"family": "lfm2"},
        {"family": "lfm2", "conv_bias": True},
        {"linear_num_key_heads": 3, "linear_num_value_heads": 3, "linear_conv_kernel_dim": 2},
        {"layer_types": ["full_attention", "linear_attention", "linear_attention"]},
    ],
    ids=["tiny", "convolutions", "convolutions with biases", "one value head each", "attention first"],
)
def test_fused_networks_equal_transformers_for_sequences_of_any_lengths(
    overrides: dict[str, Any], tmp_path: Path
) -> None:
    model, network = _network(tmp_path, **overrides)
    fused, fusions = run_passes(network)
    check_all_fused(fused, fusions)
    head_dim = getattr(model.config, "head_dim", 10)
    check_fused_network(model, fused, Shape(layers=3, kv_heads=2, head_dim=head_dim, vocab=VOCAB_SIZE))


@pytest.mark.parametrize(
    ("node", "change", "reason"),
    [
        ("conv.swish", {"alpha": 1.5}, "the activation of the convolution is not SiLU"),
        ("conv.mixed", {"dilations": [2]}, "the convolution has strides, gaps or padding"),
        ("conv.columns", {"perm": [0, 1, 2]}, "the convolution does not run along sequences"),
        ("swish", {"alpha": 1.5}, "the activation of the gate is neither SiLU nor sigmoid"),
        ("norm", {"axis": 2}, "its norm has no weight"),
    ],
)
def test_layers_of_another_kind_stay_with_the_reason(
    node: str, change: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    _, network = _network(tmp_path)
    found = next(other for other in network.graph if other.name == f"layers.1.recurrent.{node}")
    for name, value in change.items():
        found.attributes[name] = ir.convenience.convert_attribute(name, value)
    model, fusions = run_passes(network, UNTIL)
    refused = [fusion for fusion in fusions if fusion.site.startswith("layers.1.recurrent") and not fusion.fused]
    assert refused[0].reason == reason
    assert [call.name for call in nodes_of(model.graph, "GatedDeltaRule", FUNCTIONS)] == ["layers.1.recurrent.rule"]
    assert model.functions
