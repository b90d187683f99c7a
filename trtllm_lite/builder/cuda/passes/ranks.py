"""Lets operators over several ranks access the memory of the other ranks, with barriers between ranks, or use NCCL."""

import onnx_ir as ir

from trtllm_lite.builder.cuda.limits import symbols
from trtllm_lite.builder.cuda.ops import Op, ProgramKind, known_dims
from trtllm_lite.builder.cuda.passes.experts import chooses
from trtllm_lite.builder.graph import value_of
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.plugins.cuda.ranks import FLAG_WORDS, INBOX_TURNS, RANKS_WORDS, inbox_rows
from trtllm_lite.plugins.schema import all_schemas


def rank_states(limits: BuildLimits) -> dict[str, ir.Value]:
    """Return the states that engines of several ranks have, in all stages."""
    if limits.tp_size * limits.pp_size == 1:
        return {}
    table = {"ranks": value_of("ranks", ir.DataType.INT64, [RANKS_WORDS])}
    if limits.uses_nccl:
        return table
    return {**table, "rank_flags": value_of("rank_flags", ir.DataType.INT32, [FLAG_WORDS])}


def ranks(ops: list[Op], program: ProgramKind) -> list[Op]:
    """CacheSlots, Embedding, AllReduce and AllGather of several ranks get the states ``ranks`` and ``rank_flags``.

    AllReduce gets ``rank_inbox`` and ``rank_turns``, too. With NCCL only Embedding gets ``ranks``, to know the number
    of its rank. An operator that chooses experts which are divided among ranks always gets
    ``ranks``.
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
    """Return whether ``op`` chooses experts that are divided among ranks."""
    return chooses(op) and op.attributes["local_experts"] != op.attributes["experts"]


def inbox_size(program: ProgramKind) -> int:
    """Return the number of rows that an inbox has room for, the maximum that a program sends to it."""
    return min(inbox_rows(program.limits.tp_size), symbols(program.limits)["num_tokens"])


def _inbox(op: Op, program: ProgramKind) -> dict[str, ir.Value]:
    """Return the states for the 16-bit rows of ``op`` that other ranks send, and for the turn of each row."""
    *_, features = known_dims(op.inputs["x"])
    num_ranks = program.limits.tp_size
    rows = inbox_size(program)
    shape = (INBOX_TURNS, rows, num_ranks - 1, features)
    return {
        "rank_inbox": value_of(f"rank_inbox.{features}", ir.DataType.BFLOAT16, shape),
        "rank_turns": value_of(f"rank_turns.{features}", ir.DataType.INT32, [rows]),
    }
