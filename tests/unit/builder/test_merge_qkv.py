import numpy as np

from tests.unit.builder.networks import network
from tests.unit.builder.structure import find, operators, run_until, set_input
from trtllm_lite.builder.graph import dims


def test_three_projections_become_one() -> None:
    model, decisions = run_until("merge_qkv")
    assert [(d.site, d.fused) for d in decisions] == [("layers.0.attention", True), ("layers.1.attention", True)]
    node = find(model, "layers.1.attention.qkv_proj")
    assert dims(node.outputs[0]) == ("num_tokens", (6 + 2 + 2) * 10)
    assert [dims(part) for part in find(model, "layers.1.attention.qkv_proj.split").outputs] == [
        ("num_tokens", 60),
        ("num_tokens", 20),
        ("num_tokens", 20),
    ]
    assert operators(model)["Linear"] == 15 - 2 * 2


def test_merged_weights_are_rows_of_q_then_k_then_v_and_lazy() -> None:
    source = network("qwen2")
    model, _ = run_until("merge_qkv", source)
    for what in ("weight", "bias"):
        parts = [source.graph.initializers[f"model.layers.0.self_attn.{kind}_proj.{what}"] for kind in "qkv"]
        merged = model.graph.initializers[f"layers.0.attention.qkv_proj.{what}"].const_value
        assert type(merged).__name__ == "LazyTensor"
        np.testing.assert_array_equal(merged.numpy(), np.concatenate([part.const_value.numpy() for part in parts]))


def test_a_missing_bias_among_others_becomes_zeros() -> None:
    model = network("qwen2")
    without_bias = "layers.0.attention.k_proj_out"
    model = set_input(model, "layers.0.attention.k.split", 0, without_bias)
    result, decisions = run_until("merge_qkv", model)
    assert all(decision.fused for decision in decisions)
    bias = result.graph.initializers["layers.0.attention.qkv_proj.bias"].const_value.numpy()
    assert not bias[60:80].any()
    assert bias[:60].all()


def test_projections_of_different_inputs_stay() -> None:
    model = set_input(network("llama"), "layers.0.attention.v_proj", 0, "embed_tokens_out")
    result, decisions = run_until("merge_qkv", model)
    assert [d.fused for d in decisions] == [False, True]
    assert decisions[0].site == "layers.0.attention"
    assert decisions[0].reason == "query, key and value read different inputs"
    assert operators(result)["Split"] == 1
