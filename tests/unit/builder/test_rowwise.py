import numpy as np
import onnx_ir as ir
import pytest

from tests.unit.builder.networks import Shape, network, with_shapes
from tests.unit.builder.structure import find, find_value, insert_after, operators, run_until
from trtllm_lite.builder.graph import weight_tensor
from trtllm_lite.plugins.rowwise.expression import MAX_ROWS, max_depth


def _program(node: ir.Node) -> str:
    return node.attributes["program"].value


def _constants(node: ir.Node) -> list[float]:
    tensor = weight_tensor(node.inputs[8])
    assert tensor is not None
    return tensor.numpy().tolist()


def test_a_chain_becomes_one_node_and_its_constants_an_operand() -> None:
    model, decisions = run_until("rowwise", "gemma2")
    assert not {"Add", "Mul", "Div", "Tanh"} & set(operators(model))
    cap = find(model, "logit_softcap.mul")
    assert (cap.op_type, _program(cap), _constants(cap)) == ("Rowwise", "x0 c0 div tanh c0 mul", [1.5])
    assert [(d.site, d.fused, d.reason) for d in decisions] == [
        ("logit_softcap.mul", False, "Div, Tanh, Mul run as Rowwise: 568 bytes a token in float32"),
    ]


def test_the_sum_of_a_parallel_block_is_one_add_beside_the_norm() -> None:
    model, _ = run_until("rowwise", "cohere")
    node = find(model, "layers.0.attention.add")
    assert _program(node) == "x0 x1 add"
    assert find(model, "layers.1.input_norm").inputs[2] is node.outputs[0]


def test_a_llama_has_no_leftovers() -> None:
    model, decisions = run_until("rowwise", "llama")
    assert operators(model)["Rowwise"] == len(decisions) == 0


def test_a_vector_over_features_is_an_operand() -> None:
    model = insert_after(network(), "final_norm_out", "Neg")
    mul = find(model, "final_norm_out.inserted")
    mul.op_type = "Mul"
    mul.resize_inputs(2)
    mul.replace_input_with(1, find_value(model, "model.norm.weight"))
    node = find(run_until("rowwise", with_shapes(model))[0], "final_norm_out.inserted")
    assert _program(node) == "x0 v0 mul"
    assert node.inputs[4] is not None
    assert node.inputs[4].name == "model.norm.weight"


def test_an_inner_result_that_is_read_elsewhere_ends_a_chain() -> None:
    model = insert_after(insert_after(network(), "final_norm_out", "Neg"), "final_norm_out.inserted", "Exp")
    together, _ = run_until("rowwise", model)
    assert [_program(node) for node in together.graph if node.op_type == "Rowwise"] == ["x0 neg exp"]
    apart = insert_after(network(), "layers.0.mlp.add_out", "Neg")
    result, _ = run_until("rowwise", apart)
    assert [_program(node) for node in result.graph if node.op_type == "Rowwise"] == ["x0 x1 add neg"]


def test_a_long_chain_is_cut_where_the_operands_end() -> None:
    model = network(Shape(layers=1, windows=(0,)))
    value = find_value(model, "final_norm_out")
    readers = list(value.uses())
    others = [find_value(model, name) for name in ("embed_tokens_out", "layers.0.attention.add_out")]
    previous = value
    for index in range(2 * MAX_ROWS):
        inserted = ir.node("Neg", [others[index % 2]], name=f"chain.neg_{index}")
        added = ir.node("Add", [previous, inserted.outputs[0]], name=f"chain.add_{index}")
        inserted.outputs[0].name, added.outputs[0].name = f"neg_{index}", f"add_{index}"
        anchor = find(model, "final_norm") if index == 0 else find(model, f"chain.add_{index - 1}")
        model.graph.insert_after(anchor, [inserted, added])
        previous = added.outputs[0]
    for use in readers:
        use.node.replace_input_with(use.idx, previous)
    result, _ = run_until("rowwise", with_shapes(model))
    programs = [_program(node).split(" ") for node in result.graph if node.op_type == "Rowwise"]
    assert programs
    assert all(max_depth(words) <= 8 for words in programs)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["x0", "add"], "add takes 2 values, found 1 before it"),
        (["x0", "x1"], "leaves 2 values"),
        ([], "leaves 0 values"),
    ],
)
def test_words_that_are_no_expression(words: list[str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        max_depth(words)


def test_constants_are_stored_as_they_are() -> None:
    model, _ = run_until("rowwise", "cohere")
    assert _constants(find(model, "logit_scale")) == [float(np.float32(0.0625))]
