from tests.unit.builder.networks import Shape, network
from tests.unit.builder.structure import find, insert_after, run_until
from trtllm_lite.builder.graph import dims


def test_looked_up_positions_and_their_add_become_one_operator() -> None:
    model, decisions = run_until("position_embedding", "gpt2")
    assert [(d.site, d.fused) for d in decisions] == [("embed_positions", True)]
    node = find(model, "embed_positions")
    assert node.op_type == "PositionEmbedding"
    names = [value.name for value in node.inputs]
    assert names == ["embed_tokens.embedding", "position_ids", "model.embed_positions.weight"]
    assert dims(node.outputs[0]) == ("num_tokens", 36)


def test_rows_that_are_not_added_stay() -> None:
    model = insert_after(network("gpt2"), "embed_positions_out", "Tanh")
    _, decisions = run_until("position_embedding", model)
    assert [d.reason for d in decisions] == ["its rows are read by something else than one Add"]


def test_a_network_with_rope_has_no_candidates() -> None:
    assert run_until("position_embedding", Shape())[1] == []
