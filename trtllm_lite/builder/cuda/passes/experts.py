"""Lets grouped products choose experts in programs of a few rows; in others, Router lists what rows have chosen."""

from dataclasses import replace

import onnx_ir as ir

from trtllm_lite.builder.cuda.ops import Links, Op, ProgramKind, known_dims, static_dims
from trtllm_lite.builder.graph import value_of
from trtllm_lite.plugins.cuda.grouped import MOST_LISTED_ROWS, ExpertChoice
from trtllm_lite.plugins.router.scores import num_score_columns

_ROOM = ("gathered", "members", "scores")  # workspace of CPU kernels
_TERMS = ("score_bias", "correction", "share_factors")  # inputs of a choice by scores


def experts(ops: list[Op], program: ProgramKind) -> list[Op]:
    """Let Router and the grouped products share out the choice of experts.

    If both products are GEMVs, Router only makes ``scores``, by which each product chooses: they have Router's inputs
    and attributes for that, and the first has ``tally``. It also multiplies its results by shares, or its inputs if it
    has ``input_shares``, so that the second only adds. Otherwise Router chooses, and rows are sorted by expert:
    ``places`` and ``groups``. All three operators have the attributes ``experts`` (their number in all),
    ``local_experts`` (the number on a rank), ``moe_tp_size`` and ``num_shared`` (how many all rows share).
    """
    links = Links(ops)
    routers = {op.outputs["ids"]: _with_terms(op, links) for op in ops if op.kind == "Router"}
    made = {ids: _made(router, links, program) for ids, router in routers.items()}
    rewritten = []
    for op in ops:
        ids = op.outputs["ids"] if op.kind == "Router" else op.inputs.get("ids")
        if ids not in routers:
            rewritten.append(op.without(*_ROOM))
        elif op.kind == "Router":
            rewritten.append(_router(routers[ids], made[ids]))
        else:
            rewritten.append(_product(op.without(*_ROOM), routers[ids], made[ids]))
    return rewritten


def chooses(op: Op) -> bool:
    """Return whether the kernels of ``op`` choose experts, after the pass :func:`experts`."""
    return "scores" in op.inputs or (op.kind == "Router" and "scores" not in op.outputs)


def _with_terms(router: Op, links: Links) -> Op:
    """Return ``router`` with all inputs and attributes of its choice, of which two have longer names in products."""
    attributes = {**router.attributes, **_attributes(_choice(router, links))}
    op = router.without("tally", "bias", "factors").with_inputs(tally=router.outputs["tally"])
    if "bias" in router.inputs:  # the product of two terms does not add it
        op = op.with_inputs(score_bias=router.inputs["bias"])
    if "factors" in router.inputs:
        op = op.with_inputs(share_factors=router.inputs["factors"])
    return replace(op, attributes=attributes)


def _router(router: Op, made: dict[str, ir.Value]) -> Op:
    op = router.without(*_ROOM, *(("tally", *_TERMS) if "scores" in made else ()))
    return replace(op, outputs={**op.outputs, **made}, attributes={**op.attributes, "activation": "none"})


def _product(op: Op, router: Op, made: dict[str, ir.Value]) -> Op:
    names = [] if "scores" not in made else [*_TERMS, "tally"] if op.kind == "GroupedGatedLinear" else _TERMS
    added = {name: router.inputs[name] for name in names if name in router.inputs}
    return replace(op.with_inputs(**made, **added), attributes={**router.attributes, **op.attributes})


def _made(router: Op, links: Links, program: ProgramKind) -> dict[str, ir.Value]:
    """Return the values that the products read."""
    (rows, top_k), (_, columns) = known_dims(router.outputs["ids"]), known_dims(router.outputs["scores"])
    choice, tokens = _choice(router, links), program.bucket.max_tokens

    def new(name: str, *shape: int | str, dtype: ir.DataType = ir.DataType.INT32) -> ir.Value:
        return value_of(f"{router.name}.{name}", dtype, shape)

    if tokens <= MOST_LISTED_ROWS and all(program.few_rows(op) is not None for op in _products(router, links)):
        assert isinstance(columns, int)
        return {"scores": new("scores", rows, num_score_columns(columns), dtype=ir.DataType.FLOAT)}
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
