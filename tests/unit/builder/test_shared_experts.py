"""The pass shared_experts: how it changes mixtures, and which shared experts stay as they are."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from tests.models import save_tiny_model
from tests.unit.quantize.made_up import made_up
from trtllm_lite.builder.graph import attribute, dims, nodes_of, operands, results, weight_tensor
from trtllm_lite.builder.passes import PIPELINE
from trtllm_lite.builder.pipeline import run_passes
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.engine.manifest import Fusion
from trtllm_lite.network.verifier import load_network
from trtllm_lite.plugins.schema import DOMAIN
from trtllm_lite.quantize.network import Recipe, quantize_network

NAMES = [graph_pass.name for graph_pass in PIPELINE]
UNTIL_MOE, UNTIL = (PIPELINE[: NAMES.index(name) + 1] for name in ("moe", "sigmoid_gate"))
# Sizes that are multiples of a group of weights.
IN_GROUPS = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
IN_GROUPS |= {"moe_intermediate_size": 48, "shared_expert_intermediate_size": 96}
OF_EXPERTS = ("Router", "GroupedGatedLinear", "GroupedLinear")


def network_of(family: str, directory: Path, dtype: str = "float32", **sizes: Any) -> ir.Model:
    save_tiny_model(family, directory / "model", **sizes)
    convert_checkpoint(str(directory / "model"), directory / "checkpoint", dtype)
    return load_network(directory / "checkpoint")


def decisions_of(fusions: list[Fusion]) -> list[Fusion]:
    return [fusion for fusion in fusions if fusion.pass_name == "shared_experts"]


def array(node: ir.Node, operand: str = "weight") -> np.ndarray:
    tensor = weight_tensor(operands(node)[operand])
    assert tensor is not None
    return tensor.numpy()


@pytest.mark.parametrize(
    ("family", "sizes", "shared", "gated", "layers"),
    [
        ("qwen2_moe", {"shared_expert_intermediate_size": 37}, 1, True, [0, 2]),
        ("qwen2_moe", {"shared_expert_intermediate_size": 111}, 3, True, [0, 2]),
        ("deepseek_v2", {"n_shared_experts": 2}, 2, False, [1, 2]),
        ("llama4", {}, 1, False, [0, 2]),
        ("granitemoe", {"shared_intermediate_size": 74}, 2, False, [0, 1, 2]),
    ],
)
def test_nothing_is_left_of_a_shared_expert(
    family: str, sizes: dict[str, int], shared: int, gated: bool, layers: list[int], tmp_path: Path
) -> None:
    network = network_of(family, tmp_path, "bfloat16", **sizes)
    before, _ = run_passes(network, UNTIL_MOE)
    model, fusions = run_passes(network, UNTIL)
    assert [(one.site, one.fused) for one in decisions_of(fusions)] == [(f"layers.{n}.mlp", True) for n in layers]
    assert not [node.name for node in model.graph if "shared_expert" in str(node.name)]
    found = Counter(node.op_type for node in model.graph)
    assert [found[op_type] for op_type in (*OF_EXPERTS, "SigmoidGate")] == [len(layers)] * 3 + [0]
    router, gate_up, down = (nodes_of(model.graph, op_type, DOMAIN)[0] for op_type in OF_EXPERTS)
    old_router, old_gate_up, old_down = (nodes_of(before.graph, op_type, DOMAIN)[0] for op_type in OF_EXPERTS)
    top_k, experts = attribute(router, "top_k"), len(array(old_down))
    assert top_k == attribute(old_router, "top_k")
    assert attribute(router, "local_experts") == experts + shared
    assert (attribute(router, "num_shared"), attribute(router, "shared_gate")) == (shared, int(gated))
    columns, chosen = ("num_tokens", experts + gated), ("num_tokens", top_k + shared)
    assert [dims(value) for value in router.outputs] == [chosen, chosen, columns, (experts + shared + 3,)]
    assert dims(results(gate_up)["y"]) == (*chosen, 37)
    np.testing.assert_array_equal(array(router)[:, :experts], array(old_router))
    for node, old in ((gate_up, old_gate_up), (down, old_down)):
        assert array(node).dtype == array(old).dtype
        np.testing.assert_array_equal(array(node)[:experts], array(old))
    casts = {str(node.name): node.inputs[0] for node in nodes_of(before.graph, "Cast")}
    path = f"layers.{layers[0]}.mlp.shared_expert"
    tensors = {part: weight_tensor(casts[f"{path}.{part}_proj.cast"]) for part in ("gate", "up", "down")}
    stored = {part: tensor.numpy() for part, tensor in tensors.items() if tensor is not None}
    for number in range(shared):
        rows = slice(37 * number, 37 * (number + 1))
        np.testing.assert_array_equal(array(gate_up)[experts + number, 0], stored["gate"][rows])
        np.testing.assert_array_equal(array(gate_up)[experts + number, 1], stored["up"][rows])
        np.testing.assert_array_equal(array(down)[experts + number], stored["down"][:, rows])


@pytest.mark.parametrize("scheme", [None, "int8_wo", "fp8_rowwise"])
def test_experts_without_gates_are_stored_once(scheme: str | None, tmp_path: Path) -> None:
    """The halves of an expert's matrix lie where gate and up projections do, and so do those of shared experts."""
    sizes = {"moe_latent_size": None, "hidden_size": 64, "moe_intermediate_size": 32}
    network = network_of("nemotron_h", tmp_path, moe_shared_expert_intermediate_size=64, **sizes)
    up = network.graph.initializers["weights.layers.1.mlp.experts.up_proj.weight"].const_value
    assert up is not None
    if scheme is not None:
        recipe = Recipe(scheme)
        network, _ = quantize_network(network, recipe, made_up(network))
    model, fusions = run_passes(network, UNTIL)
    assert [one.fused for one in decisions_of(fusions)] == [True]
    (gate_up,), (down,) = (nodes_of(model.graph, op_type, DOMAIN) for op_type in OF_EXPERTS[1:])
    assert attribute(gate_up, "self_gated") == 1
    assert dims(operands(gate_up)["weight"]) == (8 + 2, 2, 16, 64)
    assert (dims(results(gate_up)["y"]) or ())[1:] == (3 + 2, 32)
    assert dims(operands(down)["weight"]) == (8 + 2, 64, 32)
    if scheme is None:
        np.testing.assert_array_equal(array(gate_up)[:8].reshape(8 * 32, 64), up.numpy())


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "gpt_oss"])
def test_a_mixture_alone_is_no_candidate(family: str, tmp_path: Path) -> None:
    _, fusions = run_passes(network_of(family, tmp_path), UNTIL)
    assert decisions_of(fusions) == []


@pytest.mark.parametrize(
    ("family", "sizes", "reason"),
    [
        ("qwen2_moe", {}, "the shared expert has 53 inner features, no multiple of the 37 of an expert"),
        ("nemotron_h", {}, "the experts work on other features than a shared expert would"),
        (
            "nemotron_h",
            {"moe_latent_size": None, "moe_shared_expert_intermediate_size": 74},
            "the shared expert has no gate projection, and an expert has two of the matrices that read rows",
        ),
    ],
)
def test_others_stay_with_the_reason(family: str, sizes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    _, fusions = run_passes(network_of(family, tmp_path, **sizes), UNTIL)
    found = decisions_of(fusions)
    assert found
    assert {(one.fused, one.reason) for one in found} == {(False, reason)}


def test_another_activation_stays(tmp_path: Path) -> None:
    network = network_of("qwen2_moe", tmp_path, shared_expert_intermediate_size=37)
    swish = next(node for node in network.graph if node.name == "layers.2.mlp.shared_expert.swish")
    made = ir.Value(name="gelu", type=swish.outputs[0].type, shape=swish.outputs[0].shape)
    gelu = ir.Node("", "Gelu", swish.inputs, outputs=[made], name=swish.name)
    network.graph.insert_before(swish, gelu)
    swish.outputs[0].replace_all_uses_with(gelu.outputs[0])
    _, fusions = run_passes(network, UNTIL)
    first, second = decisions_of(fusions)
    assert first.fused
    assert second.reason == "the shared expert has the activation gelu, experts have silu"


@pytest.mark.parametrize(
    ("of_experts", "of_shared", "reason"),
    [
        ("fp8_wo", "fp8_wo", ""),
        ("int4_wo", "int4_wo", ""),
        ("int8_wo", None, "the shared expert stores its weights in another form than the experts"),
        ("int8_wo", "int4_wo", "the shared expert stores its weights in another form than the experts"),
        ("fp8_wo", "fp8_rowwise", ""),
        ("int8_wo", "int8_sq", "the shared expert multiplies rounded activations, experts do not"),
    ],
)
def test_weights_have_one_form(of_experts: str, of_shared: str | None, reason: str, tmp_path: Path) -> None:
    network = network_of("qwen2_moe", tmp_path, **IN_GROUPS)
    overrides = [("*.experts.*", of_experts)]
    if of_shared is not None:
        overrides.append(("*.shared_expert.*", of_shared))
    recipe = Recipe(overrides=tuple(overrides), group_size=16)
    network, _ = quantize_network(network, recipe, made_up(network))
    _, fusions = run_passes(network, UNTIL)
    assert {one.reason for one in decisions_of(fusions)} == {reason}


def test_more_experts_than_kernels_choose_stay(tmp_path: Path) -> None:
    sizes = {"num_experts": 33, "num_experts_per_tok": 31, "shared_expert_intermediate_size": 74}
    _, fusions = run_passes(network_of("qwen2_moe", tmp_path, **sizes), UNTIL)
    reason = "a row would have 33 of 35 experts, more than GPU kernels choose"
    assert {one.reason for one in decisions_of(fusions)} == {reason}
