import pytest

from tests.unit.builder.networks import network
from tests.unit.builder.structure import find, insert_after, operators, run_until, set_input
from trtllm_lite.builder.graph import dims


@pytest.mark.parametrize(("variant", "scale"), [("llama", 1.0), ("yarn", 1.25)])
def test_angles_cosines_sines_and_scale_become_one_table(variant: str, scale: float) -> None:
    model, decisions = run_until("rotary_table", variant)
    node = find(model, "rope")
    assert [decision.fused for decision in decisions] == [True]
    assert [value.name for value in node.inputs] == ["position_ids", "inv_freq"]
    assert node.attributes["scale"].value == scale
    assert [dims(value) for value in node.outputs] == [("num_tokens", 5)] * 2
    assert [value.name for value in node.outputs] == ["rope.cos.table", "rope.sin.table"]
    assert not {"Cos", "Sin", "Mul"} & {n.op_type for n in model.graph if (n.name or "").startswith("rope")}


def test_differently_scaled_tables_stay() -> None:
    model = set_input(network("yarn"), "rope.scale_1", 1, "rope.factor")
    model = insert_after(model, "rope.sin_out", "Neg")
    result, decisions = run_until("rotary_table", model)
    assert operators(result)["RotaryTable"] == 0
    assert decisions[0].reason == "cosines and sines are scaled differently"


def test_angles_of_something_else_stay() -> None:
    result, decisions = run_until("rotary_table", insert_after(network("llama"), "rope.unsqueeze_out", "Neg"))
    assert operators(result)["RotaryTable"] == 0
    assert "the angles are not position_ids times" in decisions[0].reason
