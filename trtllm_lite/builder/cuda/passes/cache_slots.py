"""Puts CacheSlots first in a program, which finds the tokens' places in the cache once for all layers."""

from trtllm_lite.builder.cuda.ops import Op, ProgramKind
from trtllm_lite.builder.cuda.passes.experts import chooses
from trtllm_lite.builder.cuda.program_ops import last_tokens, program_op
from trtllm_lite.plugins.schema import all_schemas


def cache_slots(ops: list[Op], program: ProgramKind) -> list[Op]:
    """Put CacheSlots first: operators over caches read its ``slots``, and attention reads its ``past_lens``.

    Operators that choose experts in decode steps also read ``slots``, by which they recognise padding rows. CacheSlots
    reads in ``last_tokens`` which sequences Sample has marked as ended. The programs of encoders, which have no cache,
    stay.
    """
    limits = program.limits
    if not limits.cache_groups:
        return ops
    first = program_op(
        "CacheSlots",
        ops,
        {"last_tokens": last_tokens(ops)},
        {"tokens_per_block": limits.tokens_per_block},
        {"num_groups": len(limits.cache_groups)},
    )
    slots = {"slots": first.outputs["slots"]}
    past_lens = {"past_lens": first.outputs["past_lens_out"]}

    def placed(op: Op) -> Op:
        schema = all_schemas()[op.kind]
        if schema.caches or (chooses(op) and program.bucket.decode):
            op = op.with_inputs(**slots)
        return op.with_inputs(**past_lens) if schema.reads_step_input("past_lens") else op

    return [first, *map(placed, ops)]
