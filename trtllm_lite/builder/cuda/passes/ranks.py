"""Operators that concern several ranks read where the others' memory is, and meet them there, or else in NCCL."""

import onnx_ir as ir

from trtllm_lite.builder.cuda.limits import symbols
from trtllm_lite.builder.cuda.ops import Op, ProgramKind, known_dims
from trtllm_lite.builder.graph import value_of
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.plugins.cuda.ranks import FLAG_WORDS, INBOX_TURNS, RANKS_WORDS, inbox_rows
from trtllm_lite.plugins.schema import all_schemas


def rank_states(limits: BuildLimits) -> dict[str, ir.Value]:
    """The states that engines of several ranks have, in all stages."""
    if limits.tp_size * limits.pp_size == 1:
        return {}
    table = {"ranks": value_of("ranks", ir.DataType.INT64, [RANKS_WORDS])}
    if limits.uses_nccl:
        return table
    return {**table, "rank_flags": value_of("rank_flags", ir.DataType.INT32, [FLAG_WORDS])}


def ranks(ops: list[Op], program: ProgramKind) -> list[Op]:
    """Of several ranks, CacheSlots, Embedding, AllReduce and AllGather get the states ``ranks`` and ``rank_flags``.

    AllReduce gets ``rank_inbox`` and ``rank_turns``, too. Where ranks meet in NCCL, Embedding alone gets ``ranks``, to
    know the number of its rank. So does a Router of whose experts a rank has some, in either case.
    """
    states = rank_states(program.limits)
    if program.limits.uses_nccl:
        concerned, inboxes = {"Embedding"}, {}
    else:
        concerned = {name for name, schema in all_schemas().items() if schema.collective} | {"CacheSlots", "Embedding"}
        inboxes = {op: _inbox(op, program) for op in ops if op.kind == "AllReduce"}
    rewritten = []
    for op in ops:
        if op.kind in concerned:
            rewritten.append(op.with_inputs(**states, **inboxes.get(op, {})))
        else:
            rewritten.append(op.with_inputs(ranks=states["ranks"]) if _has_some_experts(op) else op)
    return rewritten


def _has_some_experts(op: Op) -> bool:
    """Whether ``op`` is a Router, and ranks have some of its experts each."""
    return op.kind == "Router" and op.attributes["local_experts"] != op.attributes["experts"]


def inbox_size(program: ProgramKind) -> int:
    """The rows that an inbox has room for, and the most of a program that sends them there."""
    return min(inbox_rows(program.limits.tp_size), symbols(program.limits)["num_tokens"])


def _inbox(op: Op, program: ProgramKind) -> dict[str, ir.Value]:
    """Where rows of ``op`` are that other ranks send, 16-bit elements, and the turn that each row of it has."""
    *_, features = known_dims(op.inputs["x"])
    num_ranks = program.limits.tp_size
    rows = inbox_size(program)
    shape = (INBOX_TURNS, rows, num_ranks - 1, features)
    return {
        "rank_inbox": value_of(f"rank_inbox.{features}", ir.DataType.BFLOAT16, shape),
        "rank_turns": value_of(f"rank_turns.{features}", ir.DataType.INT32, [rows]),
    }
