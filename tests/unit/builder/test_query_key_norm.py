"""Norms of all query heads and of all key heads become one operator, between the merged product and attention."""

import pytest

from tests.unit.builder.structure import find, operators, run_until
from trtllm_lite.builder.graph import attribute, operands


def test_norms_of_all_heads_become_one_operator() -> None:
    model, decisions = run_until("query_key_norm", "olmo2")
    assert [decision.fused for decision in decisions] == [True, True]
    norm = find(model, "layers.0.attention.qk_norm")
    assert norm.op_type == "QueryKeyNorm"
    assert attribute(norm, "epsilon") == pytest.approx(1e-5)
    assert operands(norm)["x"] is find(model, "layers.0.attention.qkv_proj").outputs[0]


def test_attention_reads_the_normalised_rows() -> None:
    model, _ = run_until("paged_attention", "olmo2")
    attention = next(node for node in model.graph if node.op_type == "PagedAttention")
    assert operands(attention)["qkv"] is find(model, "layers.0.attention.qk_norm").outputs[0]
    assert "Split" not in operators(model)


def test_a_norm_of_each_head_stays_with_attention() -> None:
    model, decisions = run_until("query_key_norm", "qwen3")
    assert decisions == []
    assert "QueryKeyNorm" not in operators(model)
