"""The window mask is recognised in every form of its comparison."""

import numpy as np
import onnx_ir as ir
import pytest

from tests.unit.builder.networks import network, with_shapes
from tests.unit.builder.structure import find, find_value, insert_after, run_until


def _constant(model: ir.Model, name: str, value: int) -> ir.Value:
    tensor = ir.tensor(np.array(value), name=name)
    constant = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape([]), const_value=tensor)
    model.graph.register_initializer(constant)
    return constant


def _rewritten(op_type: str, left: tuple[str, str, int], right: tuple[str, str, int]) -> ir.Model:
    """A mistral whose mask is ``op_type``(left, right); each side is (value, Add or Sub, constant)."""
    model = network("mistral")
    old = find(model, "window_5")
    sides = []
    for index, (value, operation, amount) in enumerate((left, right)):
        inputs = [find_value(model, value), _constant(model, f"amount_{index}", amount)]
        node = ir.node(operation, inputs[::-1] if operation == "Add" else inputs, name=f"side_{index}")
        model.graph.insert_before(old, node)
        sides.append(node.outputs[0])
    new = ir.node(op_type, sides, name="rewritten")
    new.outputs[0].name = "rewritten_mask"
    model.graph.insert_before(old, new)
    old.outputs[0].replace_all_uses_with(new.outputs[0])
    model.graph.remove(old)
    return with_shapes(model)


KEYS, QUERIES = "window_5.keys_out", "window_5.queries_out"


@pytest.mark.parametrize(
    ("op_type", "left", "right"),
    [
        ("Greater", (KEYS, "Add", 5), (QUERIES, "Add", 0)),
        ("Greater", (KEYS, "Add", 7), (QUERIES, "Add", 2)),
        ("GreaterOrEqual", (KEYS, "Add", 0), (QUERIES, "Sub", 4)),
        ("Less", (QUERIES, "Sub", 5), (KEYS, "Sub", 0)),
        ("LessOrEqual", (QUERIES, "Sub", 6), (KEYS, "Sub", 2)),
    ],
)
def test_equivalent_spellings(op_type: str, left: tuple[str, str, int], right: tuple[str, str, int]) -> None:
    model, decisions = run_until("paged_attention", _rewritten(op_type, left, right))
    assert all(decision.fused for decision in decisions)
    assert find(model, "layers.0.attention").attributes["window"].value == 5


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (_rewritten("Less", (KEYS, "Add", 0), (QUERIES, "Add", 5)), "does not bound keys from below"),
        (_rewritten("Greater", (KEYS, "Add", 0), (KEYS, "Sub", 5)), "does not bound keys from below"),
        (_rewritten("Greater", (KEYS, "Sub", 9), (QUERIES, "Sub", 3)), "hides every key (a window of -6)"),
        (_rewritten("Greater", (KEYS, "Add", 0), ("past_lens", "Sub", 5)), "something other than key indices"),
        (insert_after(network("mistral"), "window_5_out", "Not"), "is not a comparison of keys with positions"),
    ],
)
def test_other_masks_stay(model: ir.Model, reason: str) -> None:
    _, decisions = run_until("paged_attention", model)
    assert [decision.fused for decision in decisions] == [False, False]
    assert reason in decisions[0].reason
