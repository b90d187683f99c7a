"""The passes moe and sigmoid_gate: how they change a mixture of experts, and what they do not change."""

from collections import Counter
from pathlib import Path

import onnx_ir as ir
import pytest

from tests.models import MOE_FAMILIES, VOCAB_SIZE, save_tiny_model
from tests.tolerances import assert_close
from tests.unit.builder.networks import Shape
from tests.unit.builder.scenario import Sequences
from trtllm_lite.builder.graph import attribute, dims, nodes_of, operands
from trtllm_lite.builder.passes import PIPELINE
from trtllm_lite.builder.pipeline import run_passes
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.convert.families import qwen2_moe
from trtllm_lite.network.verifier import load_network
from trtllm_lite.plugins.schema import DOMAIN

UNTIL = PIPELINE[: [graph_pass.name for graph_pass in PIPELINE].index("sigmoid_gate") + 1]
# The layers with experts in tiny models that also have layers without experts.
SPARSE = {"qwen2_moe": (0, 2), "llama4": (0, 2)}
SPARSE |= dict.fromkeys(("deepseek_v2", "deepseek_v3", "dots1", "ernie4_5_moe", "exaone_moe"), (1, 2))
SPARSE |= dict.fromkeys(("glm4_moe", "glm4_moe_lite", "afmoe", "cohere2_moe", "hy_v3"), (1, 2))
WINDOWED = ("dots1", "exaone_moe", "gpt_oss", "llama4", "mimo_v2_flash", "phimoe", "afmoe", "cohere2_moe", "mellum")
SPARSE["mimo_v2_flash"] = (1, 2, 3)
STANDARD = ("TopK", "ScatterElements", "Softmax", "Range", "Sigmoid")


def _network(family: str, directory: Path, dtype: str = "float32", **overrides: object) -> ir.Model:
    save_tiny_model(family, directory / "model", **overrides)
    convert_checkpoint(str(directory / "model"), directory / "checkpoint", dtype)
    return load_network(directory / "checkpoint")


@pytest.mark.parametrize("family", MOE_FAMILIES)
def test_nothing_is_left_of_a_mixture(family: str, tmp_path: Path) -> None:
    model, fusions = run_passes(_network(family, tmp_path), UNTIL)
    found = Counter(node.op_type for node in model.graph)
    sparse = SPARSE.get(family, (0, 1, 2))
    layers = len(sparse)
    for op_type in ("Router", "GroupedGatedLinear", "GroupedLinear"):
        assert found[op_type] == layers
    assert found["SigmoidGate"] == (layers if family == "qwen2_moe" else 0)
    # The mask of windows and the gates of attention are fused by later passes.
    later = {"Range": 1} if family in WINDOWED else {}
    later |= {"Sigmoid": 3} if family == "afmoe" else {}
    assert {op_type: found[op_type] for op_type in STANDARD if found[op_type]} == later
    sites = [fusion.site for fusion in fusions if fusion.pass_name == "moe" and fusion.fused]
    assert sites == [f"layers.{layer}.mlp" for layer in sparse]


@pytest.mark.parametrize("normalized", [False, True])
def test_operands_keep_shapes_and_storage(normalized: bool, tmp_path: Path) -> None:
    model, _ = run_passes(_network("qwen3_moe", tmp_path, "bfloat16", norm_topk_prob=normalized), UNTIL)
    router = nodes_of(model.graph, "Router", DOMAIN)[0]
    gate_up = nodes_of(model.graph, "GroupedGatedLinear", DOMAIN)[0]
    down = nodes_of(model.graph, "GroupedLinear", DOMAIN)[0]
    assert attribute(router, "scoring") == ("normalized_softmax" if normalized else "softmax")
    of_rows = [("num_tokens", 4), ("num_tokens", 4), ("num_tokens", 9)]
    assert [dims(value) for value in router.outputs] == [*of_rows, (9 + 3,)]
    weights = [node.inputs[-1] for node in (router, gate_up, down)]
    assert [dims(weight) for weight in weights] == [(60, 9), (9, 2, 37, 60), (9, 60, 37)]
    dtypes = [weight.dtype for weight in weights if weight is not None]
    assert dtypes == [ir.DataType.FLOAT, ir.DataType.BFLOAT16, ir.DataType.BFLOAT16]


@pytest.mark.parametrize("scoring", ["softmax", "normalized_softmax", "softmax_of_chosen"])
def test_each_pass_keeps_logits(scoring: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Softmax over the chosen scores equals softmax over all scores, divided by the sum of the chosen ones.
    monkeypatch.setattr(qwen2_moe, "qwen_scoring", lambda config: (config.flag("norm_topk_prob"), scoring)[1])
    original = _network("qwen2_moe", tmp_path, norm_topk_prob=scoring != "softmax")
    routers = nodes_of(run_passes(original, UNTIL)[0].graph, "Router", DOMAIN)
    assert {attribute(router, "scoring") for router in routers} == {scoring}
    stages = [original, *(run_passes(original, PIPELINE[:count])[0] for count in range(1, len(PIPELINE) + 1))]
    state = Sequences(Shape(layers=3, kv_heads=2, head_dim=10, vocab=VOCAB_SIZE), num_seqs=3)
    for lens in ([7, 1, 4], [1, 6, 2]):
        expected, *actual = state.step(stages, lens)
        for graph_pass, logits in zip(PIPELINE, actual, strict=True):
            assert_close(logits, expected, what=graph_pass.name)


@pytest.mark.parametrize(
    ("node", "change", "reason"),
    [
        ("swish", {"alpha": 1.5}, "the gate goes through Swish"),
        ("down_proj.transpose", {"perm": [0, 1, 2]}, "the matrix of the experts has another order"),
        ("up_proj.transpose", {"perm": [1, 0, 2]}, "the matrix of the experts has another order"),
    ],
)
def test_experts_of_another_kind_stay(node: str, change: dict[str, object], reason: str, tmp_path: Path) -> None:
    network = _network("gpt_oss", tmp_path)
    found = next(other for other in network.graph if other.name == f"layers.1.mlp.experts.{node}")
    for name, value in change.items():
        found.attributes[name] = ir.convenience.convert_attribute(name, value)
    _, fusions = run_passes(network, UNTIL)
    (refused,) = [fusion for fusion in fusions if fusion.pass_name == "moe" and not fusion.fused]
    assert refused.site == "layers.1.mlp.router.shares"
    assert reason in refused.reason


def test_biases_are_operands_by_expert(tmp_path: Path) -> None:
    model, _ = run_passes(_network("gpt_oss", tmp_path), UNTIL)
    shapes = {"Router": (5,), "GroupedGatedLinear": (5, 2, 37), "GroupedLinear": (5, 60)}
    for op_type, shape in shapes.items():
        for node in nodes_of(model.graph, op_type, DOMAIN):
            assert dims(operands(node)["bias"]) == shape


def test_another_network_is_left_alone_with_the_reason(tmp_path: Path) -> None:
    network = _network("mixtral", tmp_path)
    top_k = nodes_of(network.graph, "TopK")[0]
    top_k.attributes["largest"] = ir.AttrInt64("largest", 0)
    _, fusions = run_passes(network, UNTIL)
    refused = [fusion for fusion in fusions if fusion.pass_name == "moe" and not fusion.fused]
    assert [(fusion.site, fusion.reason) for fusion in refused] == [
        ("layers.0.mlp.router.shares", "the smallest scores are chosen")
    ]
