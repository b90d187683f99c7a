import pytest

from tests.unit.builder.networks import network
from tests.unit.builder.structure import find, insert_after, operators, run_until
from trtllm_lite.builder.graph import dims


@pytest.mark.parametrize("variant", ["llama", "bfloat16"])
def test_lookup_and_widening_become_one_embedding(variant: str) -> None:
    model, decisions = run_until("embedding", variant)
    node = find(model, "embed_tokens")
    assert [decision.fused for decision in decisions] == [True]
    assert (node.op_type, [value.name for value in node.inputs]) == (
        "Embedding",
        ["token_ids", "model.embed_tokens.weight"],
    )
    assert dims(node.outputs[0]) == ("num_tokens", 36)
    assert not any(node.name == "embed_tokens.cast" for node in model.graph)


def test_a_table_that_is_not_widened_stays() -> None:
    model = insert_after(network("float16"), "embed_tokens_out", "Relu")
    result, decisions = run_until("embedding", model)
    assert operators(result)["Embedding"] == 0
    assert [(d.site, d.reason) for d in decisions] == [
        ("embed_tokens", "the looked-up rows are not widened to float32 right away")
    ]
