"""Gives the bounds of symbols in a GPU plan, the step sizes that have programs, and the padded step sizes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trtllm_lite.builder.limits import SPARE_SLOTS, BuildLimits
from trtllm_lite.common.vocabulary import DEFAULT_MAX_LORAS
from trtllm_lite.errors import BuildError

# Batch sizes of the decode programs, whose fused kernels are for few rows.
DECODE_BUCKETS = (1, 2, 4, 8, 16)
# Largest number of tokens of each program for small steps; larger steps use the "mixed" program.
STEP_BUCKETS = (64, 128, 256, 384, 512, 1024)
# Number of rows for which kernels are chosen for all steps above the largest of STEP_BUCKETS.
LARGEST_STEP = 8192
# In programs for steps of more rows than this, kernels of their own dequantize a product's weight once, and convert the
# KV cache that long prompts see once. Writing and reading a 16-bit weight takes about as long as dequantizing it in the
# tiles of 800 rows (H200, int4, 8B model).
CONVERT_ONCE = 1024
MAX_LOGITS = 65_535  # bound of the second axis of a grid, which counts sampled rows
_WIDEST_STEP = 32  # from one padded number of rows of a decode step to the next
_ROWS = "max_batch_size * (1 + max_draft_len)"
MAX_SMS = 192  # no GPU has more SMs; this sizes the scratch of kernels that run one block per SM


@dataclass(frozen=True)
class Bucket:
    """The steps that one program carries out: those of more than ``above`` and at most ``max_tokens`` tokens.

    With ``decode`` each sequence has few new tokens, drafts included, and each token a row of logits. With ``adapters``
    some request of the step has an adapter.
    """

    name: str
    max_tokens: int
    above: int = 0
    decode: bool = False
    adapters: bool = False


def size_class(bucket: Bucket) -> int:
    """The step size for which kernels of ``bucket`` are chosen: engines with similar limits choose the same kernels."""
    return next((size for size in STEP_BUCKETS if size >= bucket.max_tokens), LARGEST_STEP)


def measured_rows(bucket: Bucket) -> range:
    """The numbers of rows whose measurements tell what is fast in ``bucket``."""
    return range(bucket.above + 1, size_class(bucket) + 1)


def decode_batches(num_rows: int) -> tuple[int, ...]:
    """The numbers of rows that decode steps are padded to; the last is the first that holds ``num_rows``.

    Up to 8 rows they are powers of two; above, their distance grows from 8 to 32, which bounds the share of padding.
    """
    sizes = [1]
    while sizes[-1] < num_rows:
        last = sizes[-1]
        sizes.append(last + (last if last < 8 else 8 if last < 64 else 16 if last < 256 else _WIDEST_STEP))
    return tuple(sizes)


def max_decode_seqs(limits: BuildLimits) -> int:
    """The most sequences with new tokens in a decode step.

    Padding tokens are in sequences of as many as a row with drafts has, if a block of the cache holds so many.
    """
    num_padding = min(1 + limits.max_draft_len, limits.tokens_per_block)
    most = decode_batches(limits.num_decode_tokens)[-1]  # before the first request there is only padding
    return max(-(-most // num_padding), min(most, limits.max_batch_size - (-(_WIDEST_STEP - 1) // num_padding)))


def decode_buckets(limits: BuildLimits) -> list[Bucket]:
    """The decode programs that batches within the limits need; none without caches, which make sequences grow."""
    if not limits.cache_groups:
        return []
    needed = [size for size in DECODE_BUCKETS if size < limits.num_decode_tokens]
    sizes = [*needed, *DECODE_BUCKETS[len(needed) : len(needed) + 1]]
    return [Bucket(f"decode_{size}", size, decode=True) for size in sizes]


def step_buckets(num_tokens: int) -> list[Bucket]:
    """The programs for steps of any composition up to ``num_tokens``, smallest first; the last one is ``mixed``."""
    sizes = [size for size in STEP_BUCKETS if size < num_tokens]
    buckets = [Bucket(f"step_{size}", size, above) for above, size in zip([0, *sizes], sizes, strict=False)]
    return [*buckets, Bucket("mixed", num_tokens, max(sizes, default=0))]


def with_adapters(buckets: Sequence[Bucket]) -> list[Bucket]:
    """The same buckets for steps in which at least one request has an adapter."""
    return [replace(bucket, name=f"lora_{bucket.name}", adapters=True) for bucket in buckets]


def symbols(limits: BuildLimits) -> dict[str, int]:
    """Upper bounds of symbols, padding included; an encoder's plan has no symbols of caches."""
    num_seqs = decode_batches(limits.num_decode_tokens)[-1]
    num_logits = max(num_seqs, limits.num_logits)
    if num_logits > MAX_LOGITS:
        name = "max_num_tokens with gather_context_logits" if limits.gather_context_logits else _ROWS
        raise BuildError(
            f"{name} leads to {num_logits:,} rows of logits in a step, and on a GPU the most is {MAX_LOGITS:,}: "
            f"lower {name}"
        )
    num_tokens = max(num_seqs, limits.num_tokens)
    adapters = {"num_adapter_tokens": num_tokens, "num_adapter_logits": num_logits, "num_loras": DEFAULT_MAX_LORAS}
    bounds = {
        "num_tokens": num_tokens,
        "num_seqs": num_seqs,
        "num_seqs_plus_1": num_seqs + 1,
        "num_decode_seqs": num_seqs,
        "num_prefill_seqs": num_seqs,
        "num_prefill_tokens": num_tokens,
        "num_token_rows": num_tokens if limits.takes_rows else 0,
        "num_image_rows": num_tokens // limits.tokens_per_row if limits.tokens_per_row else 0,
        "num_tables": num_seqs * len(limits.cache_groups),
        "num_logits": num_logits,
        "max_blocks_per_seq": limits.max_blocks_per_seq,
        "num_blocks": limits.num_blocks,
        "num_slots": decode_batches(limits.max_batch_size)[-1] + SPARE_SLOTS,
        "num_sms": MAX_SMS,
        **(adapters if limits.max_lora_rank else {}),
    }
    return {name: bound for name, bound in bounds.items() if bound}
