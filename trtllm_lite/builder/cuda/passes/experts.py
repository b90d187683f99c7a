"""The experts that rows have chosen are listed, once for all who compute with them."""

from dataclasses import replace

import onnx_ir as ir

from trtllm_lite.builder.cuda.ops import Links, Op, ProgramKind, known_dims, static_dims
from trtllm_lite.builder.graph import value_of
from trtllm_lite.plugins.cuda.grouped import MOST_LISTED_ROWS, ExpertChoice

_INT32 = ir.DataType.INT32
_ROOM = ("gathered", "members", "scores")  # of kernels of CPUs


def experts(ops: list[Op], program: ProgramKind) -> list[Op]:
    """Router lists what is chosen for the grouped products, which have their kind of lists as operands.

    Where both products are streamed that is ``chosen``, the experts, and the first of both multiplies with ``shares``,
    so that the second only adds, or with ``input_shares`` before it gates; else rows are sorted by expert: ``places``
    and ``groups``. All have the attributes ``experts``, the number of all, ``local_experts``, those of a rank, and
    ``moe_tp_size``.
    """
    links = Links(ops)
    listed = {op: _lists(op, links, program) for op in ops if op.kind == "Router"}
    return [_with_lists(op, links, listed).without(*_ROOM) for op in ops]


def _with_lists(op: Op, links: Links, listed: dict[Op, dict[str, ir.Value]]) -> Op:
    if op in listed:
        choice = _choice(op, links)
        attributes = {**op.attributes, **_attributes(choice), "activation": "none"}
        counted = op.without("tally").with_inputs(tally=op.outputs["tally"])
        if "bias" in op.inputs:  # of scores, which the product makes in two terms
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

    if tokens <= MOST_LISTED_ROWS and all(program.streams(op) is not None for op in _products(router, links)):
        return {"chosen": new("chosen", choice.chosen_ints(tokens))}
    return {"places": new("places", rows, top_k), "groups": new("groups", choice.groups_ints(tokens))}


def _choice(router: Op, links: Links) -> ExpertChoice:
    """What ``router`` chooses of, and what a rank has of it."""
    (_, top_k), (_, num_experts) = known_dims(router.outputs["ids"]), known_dims(router.outputs["scores"])
    assert isinstance(top_k, int)
    assert isinstance(num_experts, int)
    product = _products(router, links)[0]
    local, moe_tp_size = static_dims(product.inputs["weight"])[0], product.attributes["moe_tp_size"]
    assert isinstance(moe_tp_size, int)
    return ExpertChoice(num_experts, top_k, local, moe_tp_size)


def _products(router: Op, links: Links) -> list[Op]:
    return [op for op in links.readers[router.outputs["ids"]] if "weight" in op.inputs]


def _attributes(choice: ExpertChoice) -> dict[str, int]:
    return {"experts": choice.experts, "local_experts": choice.local, "moe_tp_size": choice.moe_tp_size}
