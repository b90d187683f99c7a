"""Operators that concern several ranks read where the others' memory is, and meet them by flags there."""

import onnx_ir as ir

from trtllm_lite.builder.cuda.ops import Op, ProgramKind
from trtllm_lite.builder.graph import value_of
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.plugins.cuda.ranks import FLAG_WORDS, RANKS_WORDS
from trtllm_lite.plugins.schema import all_schemas


def rank_states(limits: BuildLimits) -> dict[str, ir.Value]:
    """The states that engines of several ranks have, in all stages."""
    if limits.tp_size * limits.pp_size == 1:
        return {}
    return {
        "ranks": value_of("ranks", ir.DataType.INT64, [RANKS_WORDS]),
        "rank_flags": value_of("rank_flags", ir.DataType.INT32, [FLAG_WORDS]),
    }


def ranks(ops: list[Op], program: ProgramKind) -> list[Op]:
    """Embedding, AllReduce and AllGather get the states ``ranks`` and ``rank_flags``, if there are several ranks."""
    states = rank_states(program.limits)
    concerned = {name for name, schema in all_schemas().items() if schema.collective} | {"Embedding"}
    return [op.with_inputs(**states) if op.kind in concerned else op for op in ops]
