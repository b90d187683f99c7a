"""Recognises how a router chooses experts by its scores (network/moe.py's Router and network/expert_groups.py)."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trtllm_lite.builder.graph import (
    attribute,
    dims,
    integers,
    produced_by,
    scalar_constant,
    small_constant,
    weight_tensor,
)
from trtllm_lite.builder.passes.attention_pattern import expect, node_of
from trtllm_lite.builder.passes.sparse_mixer import match_sparse_mixer
from trtllm_lite.network.expert_groups import ExpertGroups
from trtllm_lite.network.moe import LEAST_TOTAL

NO_GROUPS = ExpertGroups(1, 1, 1)


@dataclass(frozen=True)
class Routing:
    """The routing: ``scoring`` turns ``x`` @ ``weight`` [hidden, experts] + ``bias`` into shares of the ``top_k`` best.

    The experts with the best scores + ``correction`` are chosen, under the rule of ``groups``; shares are multiplied by
    ``scale`` and by the expert's of the ``factors``. ``threshold`` is that of SparseMixer.
    """

    x: ir.Value
    weight: ir.Value
    bias: ir.Value | None
    top_k: int
    scoring: str
    correction: ir.Value | None
    groups: ExpertGroups
    scale: float
    factors: ir.Value | None
    threshold: float = 0.0

    @property
    def attributes(self) -> dict[str, int | float | str]:
        """The attributes of the operator Router."""
        groups = self.groups
        return {
            "top_k": self.top_k,
            "scoring": self.scoring,
            "num_groups": groups.num_groups,
            "top_groups": groups.top_groups,
            "num_best": groups.num_best,
            "scale": self.scale,
            "threshold": self.threshold,
        }


def match_routing(scatter: ir.Node) -> Routing:
    """Match the routing whose shares ``scatter`` places by expert. Raises MismatchError."""
    zeros, ids, placed = scatter.inputs
    top_k = node_of(ids, "TopK", "the experts are not the largest of their scores")
    of_last = attribute(scatter, "axis", 0) == -1 and attribute(top_k, "axis", -1) == -1
    expect(of_last and attribute(scatter, "reduction", "none") == "none", "shares are not placed by expert")
    expect(ids is top_k.outputs[1] and attribute(top_k, "largest", 1) == 1, "the smallest scores are chosen")
    expect(_is_zero(zeros), "experts that are not chosen have shares")
    unscaled, factors = _without_factors(placed, ids)
    shares, scale = _without_scale(unscaled)
    if produced_by(shares, "Concat"):
        threshold = match_sparse_mixer(shares, top_k)
        x, weight, bias = _match_product(top_k.inputs[0])
        return Routing(x, weight, bias, _count(top_k), "sparse_mixer", None, NO_GROUPS, scale, factors, threshold)
    groups, chosen_by = _match_groups(top_k.inputs[0])
    values, correction, scores = _chosen(shares), None, chosen_by
    if values is not top_k.outputs[0]:
        scores, correction = _match_correction(chosen_by)
        _check_gathered(values, scores, ids)
    scoring, logits = _match_scoring(values, scores, shares)
    x, weight, bias = _match_product(logits)
    return Routing(x, weight, bias, _count(top_k), scoring, correction, groups, scale, factors)


def _without_factors(shares: ir.Value | None, ids: ir.Value | None) -> tuple[ir.Value | None, ir.Value | None]:
    """The shares before they are multiplied by factors of the experts ``ids``, and the factors, if there are any."""
    scaled = produced_by(shares, "Mul")
    gather = None if scaled is None else produced_by(scaled.inputs[1], "Gather")
    if scaled is None or gather is None:
        return shares, None
    of_experts = gather.inputs[1] is ids and attribute(gather, "axis", 0) == 0 and _is_plain(gather.inputs[0])
    expect(of_experts, "the shares are multiplied by factors of other experts")
    return scaled.inputs[0], gather.inputs[0]


def _without_scale(shares: ir.Value | None) -> tuple[ir.Value | None, float]:
    scaled = produced_by(shares, "Mul")
    factor = None if scaled is None else scalar_constant(scaled.inputs[1])
    return (shares, 1.0) if scaled is None or factor is None else (scaled.inputs[0], float(factor))


def _match_correction(value: ir.Value | None) -> tuple[ir.Value | None, ir.Value | None]:
    """The scores, and the correction that is added to them for the choice."""
    corrected = produced_by(value, "Add")
    if corrected is None:
        return value, None
    scores, correction = corrected.inputs
    is_vector = weight_tensor(correction) is not None and len(dims(correction) or ()) == 1
    expect(is_vector, "what is added to the scores is no vector of the model")
    return scores, correction


def _match_groups(value: ir.Value | None) -> tuple[ExpertGroups, ir.Value | None]:
    """The rule by which groups are kept, and the scores of all experts."""
    masked = produced_by(value, "Add")
    spread = None if masked is None else produced_by(masked.inputs[1], "Gather")
    if masked is None or spread is None:
        return NO_GROUPS, value
    problem, scores = "the experts are masked in another way than by groups", masked.inputs[0]
    mask = node_of(spread.inputs[0], "ScatterElements", problem)
    top_groups = node_of(mask.inputs[1], "TopK", problem)
    left_out = node_of(mask.inputs[0], "Add", problem)
    is_mask = _is_zero(mask.inputs[2]) and _is_zero(left_out.inputs[0])
    expect(is_mask and scalar_constant(left_out.inputs[1]) == -np.inf, problem)
    of_last = [attribute(node, "axis", 0) == -1 for node in (spread, mask)]
    expect(all(of_last) and mask.inputs[1] is top_groups.outputs[1], problem)
    totals = node_of(top_groups.inputs[0], "Concat", problem).inputs
    num_best = {_match_group(total, scores, number) for number, total in enumerate(totals)}
    expect(len(num_best) == 1, "groups are scored in different ways")
    order, count = small_constant(spread.inputs[1]), len(totals)
    expect(order is not None and order.size % count == 0, problem)
    assert order is not None
    is_in_order = np.array_equal(order, np.arange(order.size) // (order.size // count))
    expect(is_in_order, "experts are grouped in another order")
    return ExpertGroups(count, _count(top_groups), num_best.pop()), scores


def _match_group(total: ir.Value | None, scores: ir.Value | None, number: int) -> int:
    """The number of best scores of group ``number`` that its score ``total`` adds up."""
    problem = "the scores of groups are no sums of the best of their experts"
    summed = node_of(total, "ReduceSum", problem)
    best = node_of(summed.inputs[0], "TopK", problem)
    parts = node_of(best.inputs[0], "Split", problem)
    sizes = integers(parts.inputs[1]) or []
    is_part = parts.inputs[0] is scores and len(set(sizes)) == 1 and best.inputs[0] is parts.outputs[number]
    is_sum = integers(summed.inputs[1]) == [-1] and summed.inputs[0] is best.outputs[0]
    expect(is_part and is_sum and attribute(best, "largest", 1) == 1, problem)
    return _count(best)


def _chosen(shares: ir.Value | None) -> ir.Value | None:
    """The scores of the chosen experts, from which ``shares`` are computed."""
    value = shares
    while (node := produced_by(value, "Div", "Softmax", "Sigmoid")) is not None:
        value = node.inputs[0]
    return value


def _check_gathered(values: ir.Value | None, scores: ir.Value | None, ids: ir.Value | None) -> None:
    """Raise MismatchError unless ``values`` are the ``scores`` of the experts ``ids``."""
    gather = node_of(values, "GatherElements", "the shares are not made of the scores of the chosen experts")
    is_of_chosen = gather.inputs[0] is scores and gather.inputs[1] is ids and attribute(gather, "axis", 0) == -1
    expect(is_of_chosen, "the shares are made of the scores of other experts")


def _match_scoring(
    values: ir.Value | None, scores: ir.Value | None, shares: ir.Value | None
) -> tuple[str, ir.Value | None]:
    """How ``shares`` are computed from the chosen ``values`` of the ``scores``, and the logits."""
    before, after = (produced_by(value, "Softmax", "Sigmoid") for value in (scores, shares))
    for function in (before, after):
        is_over_experts = function is None or function.op_type == "Sigmoid" or attribute(function, "axis", -1) == -1
        expect(is_over_experts, "the softmax is not over experts")
    if before is None:
        expect(after is not None and after.inputs[0] is values, "the shares are no softmax of the chosen scores")
        assert after is not None
        return f"{after.op_type.lower()}_of_chosen", scores
    name = before.op_type.lower()
    if shares is values:
        return name, before.inputs[0]
    ratio = produced_by(shares, "Div")
    total = None if ratio is None else _match_total(ratio.inputs[1], name)
    is_normalized = ratio is not None and total is not None and ratio.inputs[0] is total.inputs[0] is values
    expect(is_normalized, "the shares are not the chosen ones divided by their sum")
    assert total is not None
    expect(integers(total.inputs[1]) == [-1], "the shares are not divided by the sum over experts")
    return f"normalized_{name}", before.inputs[0]


def _match_total(value: ir.Value | None, function: str) -> ir.Node | None:
    """The sum of the chosen scores; for sigmoids, a small constant is added."""
    if function == "sigmoid":
        add = node_of(value, "Add", "the sum of the chosen scores may be 0")
        expect(scalar_constant(add.inputs[1]) == np.float32(LEAST_TOTAL), "the sum of the chosen scores is changed")
        value = add.inputs[0]
    return produced_by(value, "ReduceSum")


def _match_product(logits: ir.Value | None) -> tuple[ir.Value, ir.Value, ir.Value | None]:
    """The rows, the weight and the bias that make ``logits``."""
    add = produced_by(logits, "Add")
    bias = None if add is None else add.inputs[1]
    product = node_of(logits if add is None else add.inputs[0], "MatMul", "the scores are no product")
    x, weight = product.inputs
    are_plain = _is_plain(weight) and (add is None or _is_plain(bias))
    expect(are_plain, "the router's weight is not in float32")
    expect(len(dims(x) or ()) == 2, "the router does not read packed rows")
    assert x is not None
    assert weight is not None
    return x, weight, bias


def _is_plain(value: ir.Value | None) -> bool:
    """Whether ``value`` is a weight in float32."""
    return weight_tensor(value) is not None and value is not None and value.dtype == ir.DataType.FLOAT


def _count(top_k: ir.Node) -> int:
    count = scalar_constant(top_k.inputs[1])
    expect(isinstance(count, int), "the number of experts of a token is not fixed")
    assert isinstance(count, int)
    return count


def _is_zero(value: ir.Value | None) -> bool:
    """Whether ``value`` is zeros, computed as a Cast of x < x."""
    cast = produced_by(value, "Cast")
    less = None if cast is None else produced_by(cast.inputs[0], "Less")
    return less is not None and less.inputs[0] is less.inputs[1]
