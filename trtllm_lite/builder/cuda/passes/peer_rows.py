"""Lets products store rows on the ranks that read them next, so that rows travel while the product multiplies."""

from collections.abc import Iterable
from dataclasses import replace
from math import ceil

import onnx_ir as ir

from trtllm_lite.builder.cuda.limits import size_class, symbols
from trtllm_lite.builder.cuda.ops import Links, Op, ProgramKind, form_of_op, known_dims, static_dims
from trtllm_lite.builder.cuda.passes.ranks import inbox_size, rank_states
from trtllm_lite.builder.graph import value_of
from trtllm_lite.plugins.cuda.tiles import tile_configs


def stored_sums(ops: list[Op], program: ProgramKind) -> list[Op]:
    """Let each rank add up only the rows it owns (``owned``) where an inbox cannot hold all rows and this sends less.

    Linear stores rows on their owners if its kernel can: Linear and its AllReduce then have the state ``rank_sums``. An
    AllReduce with ``sum_everywhere`` also sends the sum before the norm to the other ranks.
    """
    if program.limits.tp_size == 1 or program.limits.uses_nccl:
        return ops
    links = Links(ops)
    many = program.bucket.max_tokens > inbox_size(program)
    reduces = [op for op in ops if op.kind == "AllReduce"]
    stored = {op: linear for op in reduces if many and (linear := _product(op, links, program)) is not None}
    owned = {op for op in reduces if many and (op in stored or program.limits.tp_size > 2)}
    sums = {op: _sums(reduce, program) for reduce, linear in stored.items() for op in (reduce, linear)}
    rewritten = []
    for op in ops:
        attributes = dict(op.attributes)
        if op.kind == "AllReduce":
            attributes |= {"owned": op in owned, "sum_everywhere": _is_read_elsewhere(op, owned, links)}
        rewritten.append(replace(op, attributes=attributes).with_inputs(**sums.get(op, {})))
    return rewritten


def stored_logits(ops: list[Op], program: ProgramKind) -> list[Op]:
    """Let Linear store logits on the first rank, their only reader, if the kernel of Linear can.

    The AllGather after it only waits for the logits of all ranks (``in_place``).
    """
    if program.limits.tp_size == 1 or program.limits.uses_nccl:
        return ops
    links = Links(ops)
    products = {op: linear for op in ops if (linear := _logits_product(op, links, program)) is not None}
    gathered = {op.outputs["y"]: _like(op.outputs["y"]) for op in products}
    logits = {linear: op.outputs["y"] for op, linear in products.items()}
    ranks = rank_states(program.limits)
    rewritten = []
    for op in ops:
        if op in logits:
            rewritten.append(replace(op, outputs={"y": logits[op]}).with_inputs(ranks=ranks["ranks"]))
        elif op in products:
            y = op.outputs["y"]
            waits = replace(op, inputs={"x": y}, outputs={"y": gathered[y]}, attributes={"in_place": 1})
            rewritten.append(waits)
        else:
            own = {"in_place": 0} if op.kind == "AllGather" else {}
            inputs = {name: gathered.get(value, value) for name, value in op.inputs.items()}
            rewritten.append(replace(op, inputs=inputs, attributes={**op.attributes, **own}))
    return rewritten


def _product(op: Op, links: Links, program: ProgramKind) -> Op | None:
    """Return the Linear before a collective if a tiled kernel computes it, which can store rows on any rank."""
    linear = links.producer(op.inputs["x"], "Linear")
    if linear is None or links.only_reader(op.inputs["x"]) is not op:
        return None
    extents = static_dims(linear.inputs["weight"])[-2:]
    tiles = tile_configs(*extents, form_of_op(linear), size_class(program.bucket), False, program.device)
    return linear if tiles else None


def _logits_product(op: Op, links: Links, program: ProgramKind) -> Op | None:
    """Return the Linear before an AllGather of logits if its kernel, tiled or GEMV, can store rows on another rank."""
    if op.kind != "AllGather" or not op.outputs["y"].is_graph_output():
        return None
    linear = links.producer(op.inputs["x"], "Linear")
    if linear is not None and links.only_reader(op.inputs["x"]) is op and program.few_rows(linear) is not None:
        return linear
    return _product(op, links, program)


def _is_read_elsewhere(reduce: Op, owned: Iterable[Op], links: Links) -> bool:
    """Return whether an operator reads sums of rows that this rank does not own."""
    total = reduce.outputs.get("sum")
    if total is None:
        return False
    readers = links.readers.get(total, [])
    return total.is_graph_output() or any(op not in owned or op.inputs["residual"] is not total for op in readers)


def _sums(reduce: Op, program: ProgramKind) -> dict[str, ir.Value]:
    """Return the state that holds the 16-bit rows of every rank that this rank adds up."""
    *_, features = known_dims(reduce.inputs["x"])
    num_ranks = program.limits.tp_size
    shape = (num_ranks, ceil(symbols(program.limits)["num_tokens"] / num_ranks), features)
    state = value_of(f"rank_sums.{features}", ir.DataType.BFLOAT16, shape)
    return {"rank_sums": state, "ranks": rank_states(program.limits)["ranks"]}


def _like(value: ir.Value) -> ir.Value:
    assert value.dtype is not None
    return value_of(f"{value.name}.gathered", value.dtype, known_dims(value))
