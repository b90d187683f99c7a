from collections.abc import Callable

import onnx_ir as ir
import pytest

from tests.unit.builder.networks import VARIANTS, network
from tests.unit.builder.structure import find, find_value, run_until
from trtllm_lite.builder.graph import value_of
from trtllm_lite.builder.verifier import violations


@pytest.mark.parametrize("variant", VARIANTS)
def test_sound_graphs_have_no_violations(variant: str) -> None:
    assert list(violations(network(variant))) == []
    assert list(violations(run_until("last_token_gather", variant)[0])) == []


def _swap_order(model: ir.Model) -> None:
    nodes = list(model.graph)
    model.graph.remove(nodes[-1])
    model.graph.insert_before(nodes[0], nodes[-1])


def _duplicate_name(model: ir.Model) -> None:
    find(model, "final_norm").outputs[0].name = "token_ids"


def _unknown_operator(model: ir.Model) -> None:
    find(model, "lm_head").op_type = "Linearish"


def _unknown_standard_operator(model: ir.Model) -> None:
    find(model, "lm_head").domain = ""


def _wrong_dtype(model: ir.Model) -> None:
    find(model, "final_norm").outputs[0].dtype = ir.DataType.FLOAT16


def _wrong_extent(model: ir.Model) -> None:
    find(model, "final_norm").outputs[0].shape = ir.Shape(["num_logits", 37])


def _wrong_rank(model: ir.Model) -> None:
    find(model, "final_norm").outputs[0].shape = ir.Shape(["num_logits"])


def _operator_with_state(model: ir.Model) -> None:
    find(model, "lm_head").op_type = "Sample"


def _missing_input(model: ir.Model) -> None:
    find(model, "lm_head").replace_input_with(1, None)


def _missing_attribute(model: ir.Model) -> None:
    del find(model, "final_norm").attributes["epsilon"]


def _extra_attribute(model: ir.Model) -> None:
    find(model, "lm_head").attributes["alpha"] = ir.AttrFloat32("alpha", 1.0)


def _too_many_inputs(model: ir.Model) -> None:
    node = find(model, "lm_head")
    node.resize_inputs(8)
    node.replace_input_with(7, node.inputs[0])


def _wrong_step_input(model: ir.Model) -> None:
    find(model, "layers.0.attention").replace_input_with(6, find_value(model, "logits_indices"))


def _uncomputed_output(model: ir.Model) -> None:
    model.graph.outputs.append(value_of("nothing", ir.DataType.FLOAT, [1]))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_swap_order, "Linear lm_head reads final_norm.norm before it is defined"),
        (_duplicate_name, "the name token_ids is defined twice"),
        (_unknown_operator, "lm_head: trtllm_lite has no operator Linearish for networks; it has "),
        (_operator_with_state, "lm_head: trtllm_lite has no operator Sample for networks; it has "),
        (_unknown_standard_operator, "lm_head: Linear is not an operator of ONNX opset 24"),
        (_wrong_dtype, "y (final_norm.norm) should be float32, not float16"),
        (_wrong_extent, "y (final_norm.norm) has the extent 37 where hidden is 36"),
        (_wrong_rank, "should have the shape ['rows', 'hidden']"),
        (_missing_input, "Linear lm_head: weight is missing"),
        (_missing_attribute, "expected the attributes {'epsilon': 'float'}, found {}"),
        (_extra_attribute, "{'activation': 'string'}, found {'activation': 'string', 'alpha': 'float'}"),
        (_too_many_inputs, "has 8 inputs and 1 outputs, more than its schema"),
        (_wrong_step_input, "past_lens should be the step input past_lens, not logits_indices"),
        (_uncomputed_output, "the output nothing is not computed"),
    ],
)
def test_damage_is_found(damage: Callable[[ir.Model], None], message: str) -> None:
    model, _ = run_until("last_token_gather")
    damage(model)
    found = list(violations(model))
    assert any(message in violation for violation in found), found
