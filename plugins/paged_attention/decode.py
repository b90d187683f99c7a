"""The launch of attention for rows that decode."""

from __future__ import annotations

from ..launch import Buffer, Device, Kernel, Launch, kernel, launch, symbol
from .launches import Heads, Scores, one_if
from .new_tokens import NewTokens

_TILE_TOKENS, _MAX_STAGES = 32, 8  # tokens of a stage, and the most stages, of a warp's ring
_MODEST_SHARED_BYTES = 160 * 1024  # two stages of four warps at a head_dim of 128, of eight if all is bytes
_MIN_MAX_SEQS = 256  # engines for smaller batches share their kernels


def decode(
    output: Buffer,
    tokens: NewTokens,
    *,
    device: Device,
    scores: Scores,
    max_seqs: int,
    max_sms: int,
    few_rows: bool,
    num_new_tokens: int,
) -> Launch | None:
    """Attention of the leading num_decode_seqs sequences, one new token each; None if ``device`` is too small.

    ``max_sms`` bounds the blocks of the grid. With ``few_rows``, the kernel leaves shared memory to the next one, which
    may then start while it runs. Up to ``num_new_tokens`` of the sequences may be consecutive tokens (a new token and
    its draft tokens) of one request.
    """
    heads, cache = tokens.heads, tokens.cache
    bound = max(_MIN_MAX_SEQS, 1 << (max_seqs - 1).bit_length())
    defines = heads.defines() | scores.defines()
    defines |= {"TL_MAX_SEQS": bound, "TL_MAX_GRID": max_sms, "TL_NEW_TOKENS": num_new_tokens}
    specialised = _kernel(heads, defines, device, few_rows)
    if specialised is None:
        return None
    partials = Buffer("attention_partials", "float32", ("num_sms", 2 * _result_floats(heads)))
    arrivals = Buffer("attention_arrivals", "int32", ("num_seqs", heads.num_kv_heads), "state")
    tensors = (output, tokens.query, cache.keys, cache.values, cache.past_lens, cache.tables)
    pointers = (*tensors, partials, arrivals, scores.sinks, cache.token_slots)
    grid = (symbol("num_sms"), one_if("num_decode_seqs"))
    numbers = (symbol("num_decode_seqs"), cache.table_stride, specialised.shared_bytes)
    return launch(specialised, grid, *pointers, heads.y_factor, *numbers, *scores.arguments())


def _result_floats(heads: Heads) -> int:
    """The floats of a result of a sequence and a key/value head (kPartialFloats of decode.cuh)."""
    return -(-heads.group * (heads.head_dim + 2) // 4) * 4


def _kernel(heads: Heads, defines: dict[str, int], device: Device, few_rows: bool) -> Kernel | None:
    """Choose the kernel with the most warps whose rings have at least two stages."""
    for warps in (8, 4, 2, 1):
        modest = few_rows and warps >= 4 and heads.group <= 4
        shared_bytes = min(device.shared_bytes, _MODEST_SHARED_BYTES) if modest else device.shared_bytes
        table = (2 * defines["TL_MAX_SEQS"] + 1) * 4 + 32
        results = max(warps * _result_floats(heads), 2 * defines["TL_MAX_GRID"] * heads.group) * 4 + 32
        barriers = warps * _MAX_STAGES * 8 + 128
        stage = warps * _TILE_TOKENS * heads.head_dim * heads.pair_bytes
        if shared_bytes - table - results - barriers >= 2 * stage:
            reason = f"{warps} warps are the most whose ring has two stages in {shared_bytes} bytes of shared memory"
            how = (32 * warps, shared_bytes, defines | {"TL_WARPS": warps}, reason)
            return kernel("paged_attention/decode.cuh", "paged_attention_decode", *how)
    return None
