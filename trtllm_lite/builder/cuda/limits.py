"""Bounds of the symbols of a GPU plan, and the batch sizes that steps are padded to."""

from trtllm_lite.builder.limits import BuildLimits

# Batches for which a program of fused kernels for few rows is made; larger ones take the mixed program.
DECODE_BUCKETS = (1, 2, 4, 8, 16)
# A finished request keeps its slot until its last step has ended; a few more than the batch keep the batch full.
SPARE_SLOTS = 8
MAX_SMS = 192  # more than any card has: sizes the scratch of kernels that run one block per SM


def padded_batch(num_seqs: int) -> int:
    """The batch size that a captured decode step of ``num_seqs`` rows runs at."""
    if num_seqs <= 8:
        return 1 << (num_seqs - 1).bit_length()
    step = 8 if num_seqs <= 64 else 16 if num_seqs <= 256 else 32
    return -(-num_seqs // step) * step


def decode_buckets(limits: BuildLimits) -> list[int]:
    """The decode programs that batches within the limits need."""
    needed = [bucket for bucket in DECODE_BUCKETS if bucket < limits.max_batch_size]
    return [*needed, *DECODE_BUCKETS[len(needed) : len(needed) + 1]]


def symbols(limits: BuildLimits) -> dict[str, int]:
    """Upper bounds, padding included."""
    num_seqs = padded_batch(limits.max_batch_size)
    num_tokens = max(num_seqs, limits.num_tokens)
    return {
        "num_tokens": num_tokens,
        "num_seqs": num_seqs,
        "num_seqs_plus_1": num_seqs + 1,
        "num_decode_seqs": num_seqs,
        "num_prefill_seqs": num_seqs,
        "num_prefill_tokens": num_tokens,
        "num_logits": max(num_seqs, limits.num_logits),
        "max_blocks_per_seq": limits.max_blocks_per_seq,
        "num_blocks": limits.num_blocks,
        "num_slots": num_seqs + SPARE_SLOTS,
        "num_sms": MAX_SMS,
    }
