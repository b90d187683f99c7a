import onnx_ir as ir
import pytest

from tests.unit.builder.networks import Shape, network
from tests.unit.builder.structure import find, operators
from trtllm_lite.builder.passes import PIPELINE
from trtllm_lite.builder.passes.chosen_frequencies import chosen_frequencies
from trtllm_lite.builder.pipeline import check_all_fused, run_passes

LONGROPE = Shape(original_length=16)


@pytest.mark.parametrize(
    ("max_seq_len", "frequencies", "reason"),
    [
        (16, "inv_freq", "max_seq_len 16 is within 16 tokens"),
        (17, "rope.long_inv_freq", "max_seq_len 17 is more than 16 tokens"),
    ],
)
def test_an_engine_has_the_frequencies_of_its_longest_sequence(max_seq_len: int, frequencies: str, reason: str) -> None:
    model, fusions = run_passes(network(LONGROPE), [chosen_frequencies(max_seq_len), *PIPELINE])
    check_all_fused(model, fusions)
    (table,) = (node for node in model.graph if node.op_type == "RotaryTable")
    assert frequencies in {value.name for value in table.inputs if value is not None}
    (decision,) = (fusion for fusion in fusions if fusion.pass_name == "chosen_frequencies")
    assert (decision.site, decision.fused, decision.reason) == ("rope.frequencies", True, reason)


def test_a_choice_by_anything_else_is_left() -> None:
    model = network(LONGROPE)
    attributes = find(model, "rope.max_seq").attributes
    attributes["start"], attributes["end"] = ir.AttrInt64("start", 0), ir.AttrInt64("end", 1)
    result, (decision,) = run_passes(model, [chosen_frequencies(16)])
    assert operators(result)["Where"] == 1
    assert not decision.fused
