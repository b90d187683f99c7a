"""Recognises how SparseMixer shares out to the chosen experts (network/sparse_mixer.py)."""

import numpy as np
import onnx_ir as ir

from trtllm_lite.builder.graph import attribute, integers, scalar_constant
from trtllm_lite.builder.passes.attention_pattern import expect, node_of

_PROBLEM = "the shares are not those of SparseMixer"


def match_sparse_mixer(shares: ir.Value | None, top_k: ir.Node) -> float:
    """The threshold of the mixer that makes ``shares`` of the choices ``top_k``. Raises MismatchError."""
    scores, left = top_k.inputs[0], top_k.inputs[0]
    each, thresholds = node_of(shares, "Concat", _PROBLEM).inputs, set()
    for number, share in enumerate(each):
        gather = node_of(share, "GatherElements", _PROBLEM)
        softmax = node_of(gather.inputs[0], "Softmax", _PROBLEM)
        kept = node_of(softmax.inputs[0], "Where", _PROBLEM)
        best, expert = (_part(top_k, output, number, len(each)) for output in (0, 1))
        are_over_experts = attribute(softmax, "axis", -1) == -1 and attribute(gather, "axis", 0) == -1
        expect(are_over_experts and gather.inputs[1] is expert, _PROBLEM)
        expect(scalar_constant(kept.inputs[1]) == -np.inf, _PROBLEM)
        thresholds.add(_threshold(kept.inputs[0], scores, best))
        if number > 0:
            left = _without_last(kept.inputs[2], left, _part(top_k, 1, number - 1, len(each)))
        expect(kept.inputs[2] is left, _PROBLEM)
    expect(len(thresholds) == 1, _PROBLEM)
    return thresholds.pop()


def _part(top_k: ir.Node, output: int, number: int, count: int) -> ir.Value:
    """Scores (0) or numbers (1) of the choice ``number`` of ``count``."""
    splits = [use.node for use in top_k.outputs[output].uses() if use.node.op_type == "Split"]
    are_each = len(splits) == 1 and integers(splits[0].inputs[1]) == [1] * count
    expect(are_each and attribute(splits[0], "axis", 0) == -1, _PROBLEM)
    return splits[0].outputs[number]


def _threshold(value: ir.Value | None, scores: ir.Value | None, best: ir.Value) -> float:
    is_far = node_of(value, "Less", _PROBLEM)
    most, gap = node_of(is_far.inputs[0], "Mul", _PROBLEM), node_of(is_far.inputs[1], "Sub", _PROBLEM)
    reference, threshold = node_of(most.inputs[0], "Max", _PROBLEM), scalar_constant(most.inputs[1])
    magnitude = node_of(reference.inputs[0], "Abs", _PROBLEM)
    are_of_scores = magnitude.inputs[0] is scores and tuple(gap.inputs) == (best, scores)
    expect(are_of_scores and reference.inputs[1] is best and threshold is not None, _PROBLEM)
    assert threshold is not None
    return float(threshold)


def _without_last(value: ir.Value | None, before: ir.Value | None, expert: ir.Value) -> ir.Value | None:
    """The scores ``value``, if they are those of ``before`` with minus infinity for the expert that was chosen."""
    scatter = node_of(value, "ScatterElements", _PROBLEM)
    taken = node_of(scatter.inputs[2], "Add", _PROBLEM)
    is_of_last = scatter.inputs[0] is before and scatter.inputs[1] is expert and attribute(scatter, "axis", 0) == -1
    expect(is_of_last and scalar_constant(taken.inputs[1]) == -np.inf, _PROBLEM)
    return value
