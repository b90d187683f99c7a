"""The passes mamba2 and grouped_norm: how they change recurrent layers, and what they do not change."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from transformers import PreTrainedModel

from tests.models import VOCAB_SIZE, save_tiny_model
from tests.unit.builder.networks import Shape
from tests.unit.builder.recurrent import check_fused_network
from trtllm_lite.builder.graph import attribute, dims, nodes_of, operands, weight_tensor
from trtllm_lite.builder.passes import PIPELINE
from trtllm_lite.builder.pipeline import check_all_fused, run_passes
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.network.functions import FUNCTIONS
from trtllm_lite.network.verifier import load_network
from trtllm_lite.plugins.replay import REPLAYED, ReplayState
from trtllm_lite.plugins.schema import DOMAIN

UNTIL = PIPELINE[: [graph_pass.name for graph_pass in PIPELINE].index("grouped_norm") + 1]
FUSED = ("CausalConv", "Mamba2", "GroupedRmsNorm")


def _network(directory: Path, dtype: str = "float32", **overrides: Any) -> tuple[PreTrainedModel, ir.Model]:
    model = save_tiny_model("bamba", directory / "model", **overrides)
    convert_checkpoint(str(directory / "model"), directory / "checkpoint", dtype)
    return model, load_network(directory / "checkpoint")


def test_nothing_is_left_of_recurrent_layers(tmp_path: Path) -> None:
    model, fusions = run_passes(_network(tmp_path)[1], UNTIL)
    found = Counter(node.op_type for node in model.graph)
    assert {op_type: found[op_type] for op_type in FUSED} == dict.fromkeys(FUSED, 2)
    assert not found.keys() & {"Conv", "Slice", "Concat"}
    assert not model.functions
    for name, what in (("mamba2", "space"), ("grouped_norm", "norm")):
        sites = [fusion.site for fusion in fusions if fusion.pass_name == name and fusion.fused]
        assert sites == [f"layers.0.recurrent.{what}", f"layers.1.recurrent.{what}"]


def test_operands_keep_shapes_and_weights(tmp_path: Path) -> None:
    source, network = _network(tmp_path, "bfloat16", time_step_limit=[0.125, 2.5])
    model, _ = run_passes(network, UNTIL)
    conv, space, norm = (nodes_of(model.graph, op_type, DOMAIN)[1] for op_type in FUSED)
    assert (dims(operands(conv)["weight"]), dims(operands(conv)["bias"])) == ((200, 4), (200,))
    assert operands(space)["xbc"] is conv.outputs[0]
    assert dims(operands(space)["recurrent_state"]) == ("num_blocks", 6, ReplayState(14, 24, 1, REPLAYED, 1).size)
    assert [attribute(space, name) for name in ("num_groups", "min_step", "max_step")] == [2, 0.125, 2.5]
    assert operands(norm)["x"] is space.outputs[0]
    assert (attribute(norm, "order"), attribute(norm, "epsilon")) == ("gate_first", pytest.approx(1e-5))
    weight = weight_tensor(operands(norm)["weight"])
    assert weight is not None
    expected = source.model.layers[1].mamba.norm.weight.detach().numpy().reshape(2, 72)
    np.testing.assert_array_equal(weight.numpy(), expected)


@pytest.mark.parametrize("overrides", [{}, {"mamba_n_groups": 6}, {"mamba_n_groups": 1, "mamba_d_conv": 2}], ids=str)
def test_fused_networks_equal_transformers_for_sequences_of_any_lengths(
    overrides: dict[str, Any], tmp_path: Path
) -> None:
    model, network = _network(tmp_path, **overrides)
    fused, fusions = run_passes(network)
    check_all_fused(fused, fusions)
    check_fused_network(model, fused, Shape(layers=3, kv_heads=2, head_dim=12, vocab=VOCAB_SIZE))


def test_norms_of_another_kind_stay_with_the_reason(tmp_path: Path) -> None:
    _, network = _network(tmp_path)
    found = next(other for other in network.graph if other.name == "layers.1.recurrent.norm_of_72")
    found.attributes["axis"] = ir.convenience.convert_attribute("axis", 2)
    model, fusions = run_passes(network, UNTIL)
    refused = [fusion for fusion in fusions if fusion.site.startswith("layers.1.recurrent") and not fusion.fused]
    assert [fusion.reason for fusion in refused] == ["the norm is not over groups of features"]
    assert len(nodes_of(model.graph, "GroupedRmsNorm", DOMAIN)) == 1


def test_gates_of_another_kind_are_no_part_of_norms(tmp_path: Path) -> None:
    _, network = _network(tmp_path)
    found = next(other for other in network.graph if other.name == "layers.1.recurrent.swish")
    found.attributes["alpha"] = ir.convenience.convert_attribute("alpha", 1.5)
    model, _ = run_passes(network, UNTIL)
    gates = ["gate" in operands(norm) for norm in nodes_of(model.graph, "GroupedRmsNorm", DOMAIN)]
    assert sorted(gates) == [False, True]


def test_a_state_that_is_not_kept_leaves_its_call(tmp_path: Path) -> None:
    _, network = _network(tmp_path)
    call = nodes_of(network.graph, "Mamba2", FUNCTIONS)[1]
    zeros = ir.node("Sub", [call.inputs[5], call.inputs[5]], name="layers.1.recurrent.zeros")
    zeros.outputs[0].type, zeros.outputs[0].shape = call.inputs[5].type, call.inputs[5].shape
    zeros.outputs[0].name = "layers.1.recurrent.zeros"
    network.graph.insert_before(call, zeros)
    call.replace_input_with(5, zeros.outputs[0])
    model, fusions = run_passes(network, UNTIL)
    refused = [fusion.reason for fusion in fusions if fusion.pass_name == "mamba2" and not fusion.fused]
    assert refused == ["its recurrent_state is not an input of the network"]
    assert len(nodes_of(model.graph, "Mamba2", FUNCTIONS)) == 1
