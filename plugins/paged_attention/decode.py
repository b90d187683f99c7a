"""The launch of attention for rows that decode."""

from __future__ import annotations

from dataclasses import dataclass

from ..launch import Argument, Buffer, Device, Kernel, Launch, kernel, launch, symbol
from .launches import Cache, Heads, Scores, one_if
from .new_tokens import NewTokens, Unturned

_TILE_TOKENS, _MAX_STAGES = 32, 8  # of a warp's ring
_MODEST_SHARED_BYTES = 160 * 1024  # two stages of four warps at a head_dim of 128
_MIN_MAX_SEQS = 256  # engines for smaller batches share their kernels


@dataclass(frozen=True)
class DecodeRows:
    """The leading ``num_decode_seqs`` sequences, one new token each: their queries, or ``unturned`` rows.

    Of these attention makes queries, keys and values by itself. At most ``num_new_tokens`` of the sequences are tokens
    of one and the same, each behind those before it.
    """

    tokens: NewTokens
    unturned: Unturned | None
    num_new_tokens: int = 1

    @property
    def heads(self) -> Heads:
        """The extents of the layer."""
        return self.tokens.heads

    @property
    def cache(self) -> Cache:
        """The cache of the layer."""
        return self.tokens.cache

    @property
    def head_bytes(self) -> int:
        """Shared memory of a pair's heads, as attention makes them of its rows."""
        heads = self.heads
        if self.unturned is None:
            return 0
        return heads.group * (heads.head_dim + 8) * 2 + 2 * heads.head_dim * heads.cache_bytes

    def defines(self) -> dict[str, int]:
        """Macros of the kernel."""
        defines = self.heads.defines() | {"TL_NEW_TOKENS": self.num_new_tokens, "TL_QKV": 0}
        if self.unturned is None:
            return defines
        own = {"TL_ROTARY_DIM": self.heads.rotary_dim, "TL_NORM": int(self.unturned.norm is not None)}
        return defines | own | {"TL_QKV": 1}

    @property
    def rows(self) -> Buffer:
        """What the kernel reads queries from."""
        return self.tokens.query if self.unturned is None else self.unturned.qkv

    def arguments(self) -> tuple[Argument, ...]:
        """Arguments of the kernel behind the sinks."""
        if self.unturned is None:
            return (self.cache.token_slots,)
        return (self.cache.token_slots, *self.tokens.tables, *self.unturned.norms, *self.cache.factors)


def decode(
    output: Buffer, rows: DecodeRows, *, device: Device, max_seqs: int, max_sms: int, scores: Scores, few_rows: bool
) -> Launch | None:
    """Attention of ``rows``; None if ``device`` is too small.

    ``max_sms`` bounds the blocks of its grid. With ``few_rows`` it leaves shared memory to the kernel behind it, which
    may then start beside it.
    """
    bound = max(_MIN_MAX_SEQS, 1 << (max_seqs - 1).bit_length())
    specialised = _kernel(rows, scores, device, bound, max_sms, few_rows)
    if specialised is None:
        return None
    heads, cache = rows.heads, rows.cache
    row = heads.group * (heads.head_dim + 2)
    partials = Buffer("attention_partials", "float32", ("num_sms", 2 * row))
    arrivals = Buffer("attention_arrivals", "int32", ("num_seqs", heads.num_kv_heads), "state")
    tensors = (output, rows.rows, cache.keys, cache.values, cache.past_lens, cache.tables)
    pointers = (*tensors, partials, arrivals, scores.sinks)
    grid = (symbol("num_sms"), one_if("num_decode_seqs"))
    numbers = (symbol("num_decode_seqs"), cache.table_stride, specialised.shared_bytes)
    return launch(specialised, grid, *pointers, *rows.arguments(), heads.y_factor, *numbers, *scores.arguments())


def _kernel(
    rows: DecodeRows, scores: Scores, device: Device, max_seqs: int, max_grid: int, few_rows: bool
) -> Kernel | None:
    """The kernel with the widest block whose ring has two stages."""
    heads = rows.heads
    for warps in (4, 2, 1):
        modest = few_rows and warps == 4 and heads.group <= 4
        shared_bytes = min(device.shared_bytes, _MODEST_SHARED_BYTES) if modest else device.shared_bytes
        table = (2 * max_seqs + 1) * 4 + 32
        of_warp = max((heads.head_dim + 2) * heads.group * 4, rows.head_bytes) + 16
        results = max(warps * of_warp, max_grid * heads.group * 4) + 32
        barriers = warps * _MAX_STAGES * 8 + 128
        stage = warps * 2 * _TILE_TOKENS * heads.head_dim * heads.cache_bytes
        if shared_bytes - table - results - barriers >= 2 * stage:
            defines = rows.defines() | scores.defines()
            defines |= {"TL_WARPS": warps, "TL_MAX_SEQS": max_seqs, "TL_MAX_GRID": max_grid}
            reason = f"{warps} warps are the most whose ring has two stages in {shared_bytes} bytes of shared memory"
            name = "paged_attention_decode"
            return kernel("paged_attention/decode.cuh", name, 32 * warps, shared_bytes, defines, reason)
    return None
