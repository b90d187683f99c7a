"""Puts CacheSlots first in a program, which finds the tokens' places in the cache once for all layers."""

from trtllm_lite.builder.cuda.ops import Op, ProgramKind
from trtllm_lite.builder.cuda.program_ops import last_tokens, program_op

_OVER_CACHES = ("PagedAttention", "LatentAttention", "PagedLoad", "PagedStore")
_ATTENTION = ("PagedAttention", "LatentAttention")


def cache_slots(ops: list[Op], program: ProgramKind) -> list[Op]:
    """Put CacheSlots first: operators over caches read its ``slots``, and attention reads its ``past_lens``.

    Routers of decode steps also read ``slots``, by which they recognise padding rows. CacheSlots reads in
    ``last_tokens`` which sequences Sample has marked as ended. Encoders have no cache.
    """
    limits = program.limits
    if not limits.generates:
        return ops
    first = program_op(
        "CacheSlots",
        ops,
        {"last_tokens": last_tokens(ops)},
        {"tokens_per_block": limits.tokens_per_block},
        {"num_groups": len(limits.cache_groups)},
    )
    slots = {"slots": first.outputs["slots"]}
    concerned = (*_OVER_CACHES, "Router") if program.bucket.decode else _OVER_CACHES
    placed = [op.with_inputs(**slots) if op.kind in concerned else op for op in ops]
    past_lens = {"past_lens": first.outputs["past_lens_out"]}
    return [first, *(op.with_inputs(**past_lens) if op.kind in _ATTENTION else op for op in placed)]
