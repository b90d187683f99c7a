"""Lists the experts that rows have chosen, once for all grouped products."""

from dataclasses import replace

import onnx_ir as ir

from trtllm_lite.builder.cuda.ops import Links, Op, ProgramKind, known_dims, static_dims
from trtllm_lite.builder.graph import value_of
from trtllm_lite.plugins.cuda.grouped import MOST_LISTED_ROWS, ExpertChoice

_INT32 = ir.DataType.INT32
_ROOM = ("gathered", "members", "scores")  # workspace of CPU kernels


def experts(ops: list[Op], program: ProgramKind) -> list[Op]:
    """Let Router list the chosen experts for the grouped products, which take the lists as operands.

    If both products are GEMVs, the list is ``chosen`` (the experts); the first product multiplies its results by
    ``shares``, or its inputs by ``input_shares``, so that the second only adds. Otherwise rows are sorted by expert:
    ``places`` and ``groups``. All three operators have the attributes ``experts`` (their number in all),
    ``local_experts`` (the number on a rank), ``moe_tp_size`` and ``num_shared`` (how many all rows share).
    """
    links = Links(ops)
    listed = {op: _lists(op, links, program) for op in ops if op.kind == "Router"}
    return [_with_lists(op, links, listed).without(*_ROOM) for op in ops]


def _with_lists(op: Op, links: Links, listed: dict[Op, dict[str, ir.Value]]) -> Op:
    if op in listed:
        choice = _choice(op, links)
        attributes = {**op.attributes, **_attributes(choice), "activation": "none"}
        counted = op.without("tally").with_inputs(tally=op.outputs["tally"])
        if "bias" in op.inputs:  # the bias of scores, which the product of two terms adds
            counted = counted.without("bias").with_inputs(score_bias=op.inputs["bias"])
        return replace(counted, outputs={**counted.outputs, **listed[op]}, attributes=attributes)
    router = links.producer(op.inputs.get("ids"), "Router")
    if router is None:
        return op
    added = dict(listed[router])
    if op.kind == "GroupedGatedLinear" and "input_shares" not in op.inputs:
        added["shares"] = router.outputs["shares"]
    return replace(op.with_inputs(**added), attributes={**op.attributes, **_attributes(_choice(router, links))})


def _lists(router: Op, links: Links, program: ProgramKind) -> dict[str, ir.Value]:
    rows, top_k = known_dims(router.outputs["ids"])
    choice, tokens = _choice(router, links), program.bucket.max_tokens

    def new(name: str, *shape: int | str) -> ir.Value:
        return value_of(f"{router.name}.{name}", _INT32, shape)

    if tokens <= MOST_LISTED_ROWS and all(program.few_rows(op) is not None for op in _products(router, links)):
        return {"chosen": new("chosen", choice.chosen_ints(tokens))}
    return {"places": new("places", rows, top_k), "groups": new("groups", choice.groups_ints(tokens))}


def _choice(router: Op, links: Links) -> ExpertChoice:
    """Return the choice that ``router`` makes, and the experts that a rank has."""
    (_, top_k), (_, columns) = known_dims(router.outputs["ids"]), known_dims(router.outputs["scores"])
    shared, gate = router.attributes["num_shared"], router.attributes["shared_gate"]
    product = _products(router, links)[0]
    local, moe_tp_size = static_dims(product.inputs["weight"])[0], product.attributes["moe_tp_size"]
    assert isinstance(top_k, int)
    assert isinstance(columns, int)
    assert isinstance(shared, int)
    assert isinstance(gate, int)
    assert isinstance(moe_tp_size, int)
    return ExpertChoice(columns - gate + shared, top_k, local, moe_tp_size, shared)


def _products(router: Op, links: Links) -> list[Op]:
    return [op for op in links.readers[router.outputs["ids"]] if "weight" in op.inputs]


def _attributes(choice: ExpertChoice) -> dict[str, int]:
    of_rank = {"local_experts": choice.local, "moe_tp_size": choice.moe_tp_size}
    return {"experts": choice.experts, "num_shared": choice.shared, **of_rank}
