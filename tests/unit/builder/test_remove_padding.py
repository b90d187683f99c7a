import pytest

from tests.unit.builder.networks import network
from tests.unit.builder.structure import find, find_value, insert_after, operators, run_until
from trtllm_lite.builder.graph import dims
from trtllm_lite.builder.passes.contract import PassError
from trtllm_lite.builder.passes.remove_padding import REMOVE_PADDING


def test_inputs_become_packed_int32() -> None:
    model, _ = run_until("remove_padding")
    described = {value.name: (value.dtype.name, dims(value)) for value in model.graph.inputs[:5]}
    assert described == {
        "token_ids": ("INT32", ("num_tokens",)),
        "position_ids": ("INT32", ("num_tokens",)),
        "past_lens": ("INT32", ("num_seqs",)),
        "padded_rows": ("INT64", ("num_seqs", "seq")),
        "packed_rows": ("INT64", ("num_tokens",)),
    }


def test_every_matrix_product_runs_on_packed_rows() -> None:
    model, _ = run_until("remove_padding", "qwen2")
    products = [node for node in model.graph if node.op_type == "MatMul"]
    assert len(products) == 15
    assert {dims(node.inputs[0])[0] for node in products} == {"num_tokens"}
    assert dims(model.graph.outputs[0]) == ("num_tokens", 71)


def test_only_attention_sees_sequences() -> None:
    model, _ = run_until("remove_padding", "qwen3")
    attention = find(model, "layers.0.attention")
    assert dims(attention.inputs[0]) == ("num_seqs", 6, "seq", 14)
    padded = {node.op_type for node in model.graph for value in node.outputs if "seq" in (dims(value) or ())}
    # The head norms of Qwen3 belong to attention.
    allowed = {"Attention", "Gather", "Reshape", "RMSNormalization", "RotaryEmbedding", "Shape", "Transpose"}
    assert padded <= allowed


def test_one_unpack_per_value_and_one_pack_per_layer() -> None:
    before = operators(network("llama"))
    after = operators(run_until("remove_padding")[0])
    # q, k, v of two layers; cos, sin, and the ids whose shape is the length of the step; two pack operators
    assert after["Gather"] - before["Gather"] == 6 + 3 + 2
    assert after["Flatten"] == 2


def test_an_unknown_operator_between_tokens_is_left_padded() -> None:
    model = insert_after(network("llama"), "layers.0.mlp.down_proj_out", "LpNormalization")
    result, _ = run_until("remove_padding", model)
    assert dims(find_value(result, "layers.0.mlp.down_proj_out.inserted")) == ("num_seqs", "seq", 36)


def test_running_it_twice_violates_its_precondition() -> None:
    model, _ = run_until("remove_padding")
    with pytest.raises(PassError, match="precondition of remove_padding violated: expected an input input_ids"):
        REMOVE_PADDING(model.graph)
