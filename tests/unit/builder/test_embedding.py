import numpy as np
import onnx_ir as ir
import pytest

from tests.unit.builder.networks import network
from tests.unit.builder.structure import find, insert_after, operators, run_until, set_input
from trtllm_lite.builder.graph import attribute, dims, nodes_of
from trtllm_lite.network.tensors import add_initializer


@pytest.mark.parametrize("variant", ["llama", "bfloat16"])
def test_lookup_and_cast_become_one_embedding(variant: str) -> None:
    model, decisions = run_until("embedding", variant)
    node = find(model, "embed_tokens")
    assert [decision.fused for decision in decisions] == [True]
    assert (node.op_type, [value.name for value in node.inputs]) == (
        "Embedding",
        ["token_ids", "model.embed_tokens.weight"],
    )
    assert dims(node.outputs[0]) == ("num_tokens", 36)
    assert attribute(node, "scale") == 1.0
    assert not any(node.name == "embed_tokens.cast" for node in model.graph)


def test_a_constant_factor_becomes_the_scale() -> None:
    model, _ = run_until("embedding", "gemma2")
    assert attribute(find(model, "embed_tokens"), "scale") == 6.0
    assert [node.name for node in nodes_of(model.graph, "Mul") if "embed" in str(node.name)] == []


def test_a_factor_for_each_feature_is_no_scale() -> None:
    model = network("gemma2")
    factors = ir.tensor(np.full(36, 2.0, np.float32), name="factors")
    set_input(model, "embed_scale", 1, add_initializer(model.graph, "factors", factors))
    result, decisions = run_until("embedding", model)
    assert [decision.fused for decision in decisions] == [True]
    assert attribute(find(result, "embed_tokens"), "scale") == 1.0
    assert find(result, "embed_scale").inputs[0] is find(result, "embed_tokens").outputs[0]


def test_a_table_that_is_not_cast_stays() -> None:
    model = insert_after(network("float16"), "embed_tokens_out", "Relu")
    result, decisions = run_until("embedding", model)
    assert operators(result)["Embedding"] == 0
    assert [(d.site, d.reason) for d in decisions] == [
        ("embed_tokens", "the looked-up rows are not cast to float32 right away")
    ]
