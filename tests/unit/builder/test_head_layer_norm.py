"""LayerNorms of query and key heads become one operator, between the merged product and attention."""

import pytest

from tests.unit.builder.structure import find, operators, run_until
from trtllm_lite.builder.graph import attribute, operands


def test_norms_of_heads_become_one_operator() -> None:
    model, decisions = run_until("head_layer_norm", "stablelm")
    assert [decision.fused for decision in decisions] == [True, True]
    norm = find(model, "layers.0.attention.qk_norm")
    assert norm.op_type == "HeadLayerNorm"
    assert attribute(norm, "epsilon") == pytest.approx(1e-5)
    assert operands(norm)["x"] is find(model, "layers.0.attention.qkv_proj").outputs[0]


def test_attention_reads_the_normalised_rows() -> None:
    model, _ = run_until("paged_attention", "stablelm")
    attention = next(node for node in model.graph if node.op_type == "PagedAttention")
    assert operands(attention)["qkv"] is find(model, "layers.0.attention.qk_norm").outputs[0]
    assert "Split" not in operators(model)
