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
    """Embedding, AllReduce and AllGather get the states ``ranks`` and ``rank_flags``, if there are several ranks.

    AllReduce gets ``rank_inbox`` and ``rank_turns``, too. Where ranks meet in NCCL, Embedding alone gets ``ranks``, to
    know the number of its rank.
    """
    states = rank_states(program.limits)
    concerned = {name for name, schema in all_schemas().items() if schema.collective} | {"Embedding"}
    if program.limits.uses_nccl:
        return [op.with_inputs(**states) if op.kind == "Embedding" else op for op in ops]
    inboxes = {op: _inbox(op, program) for op in ops if op.kind == "AllReduce"}
    return [op.with_inputs(**states, **inboxes.get(op, {})) if op.kind in concerned else op for op in ops]


def _inbox(op: Op, program: ProgramKind) -> dict[str, ir.Value]:
    """Where rows of ``op`` are that other ranks send, 16-bit elements, and the turn that each row of it has."""
    *_, features = known_dims(op.inputs["x"])
    num_ranks = program.limits.tp_size
    rows = min(inbox_rows(num_ranks), symbols(program.limits)["num_tokens"])
    shape = (INBOX_TURNS, rows, num_ranks - 1, features)
    return {
        "rank_inbox": value_of(f"rank_inbox.{features}", ir.DataType.BFLOAT16, shape),
        "rank_turns": value_of(f"rank_turns.{features}", ir.DataType.INT32, [rows]),
    }
