"""The launch of attention for rows that decode."""

from __future__ import annotations

from dataclasses import dataclass

from ..launch import Buffer, Device, Kernel, Launch, kernel, launch, symbol
from .launches import WIDE_DIM, Heads, Scores, one_if
from .new_tokens import NewTokens

_TILE_TOKENS, _MAX_STAGES = 32, 8  # tokens of a stage, and the most stages, of a warp's ring
_OCTET = 8  # rows of which a tile has several
# A lane has 48 registers of sums, scores and weights for each octet of a head_dim of 128. With these bounds they fit.
_MOST_OCTETS, _MOST_OCTET_ELEMENTS = 5, 3 * 128
_MODEST_SHARED_BYTES = 160 * 1024  # two stages of four warps at a head_dim of 128, of eight if all is bytes
_MIN_MAX_ITEMS = 256  # engines for smaller batches share their kernels


@dataclass(frozen=True)
class DecodeItems:
    """Up to ``num_new_tokens`` new tokens of a sequence, in items of up to ``tokens`` of these (items.cuh)."""

    num_new_tokens: int
    tokens: int

    @classmethod
    def of(cls, heads: Heads, num_new_tokens: int) -> DecodeItems:
        """As few items as possible, whose rows (``heads.group`` of each token) fit in a tile; sizes are alike.

        Wide heads leave no registers for queries, and the kernel for several new tokens keeps these in shared memory.
        """
        num_new_tokens = max(num_new_tokens, 2) if heads.head_dim > WIDE_DIM else num_new_tokens
        octets = max(min(_MOST_OCTETS, _MOST_OCTET_ELEMENTS // heads.head_dim), 1)
        most = max(octets * _OCTET // heads.group, 1)
        items = -(-num_new_tokens // most)
        return cls(num_new_tokens, -(-num_new_tokens // items))

    @property
    def of_sequence(self) -> int:
        """The most items of a sequence."""
        return -(-self.num_new_tokens // self.tokens)

    def defines(self) -> dict[str, int]:
        """Macros of the kernel."""
        return {"TL_NEW_TOKENS": self.num_new_tokens, "TL_ITEM_TOKENS": self.tokens}

    def part_rows(self, heads: Heads) -> int:
        """Rows of a result that are combined together (kPartRows of decode_rows.cuh)."""
        return heads.group if self.num_new_tokens == 1 else min(self.tokens * heads.group, _OCTET)

    def part_floats(self, heads: Heads) -> int:
        """Floats of such rows (kPartFloats of decode_results.cuh)."""
        return -(-self.part_rows(heads) * (heads.head_dim + 2) // 4) * 4

    def result_floats(self, heads: Heads) -> int:
        """Floats of the result of an item and a key/value head (kPartialFloats)."""
        parts = 1 if self.num_new_tokens == 1 else -(-self.tokens * heads.group // _OCTET)
        return parts * self.part_floats(heads)

    def warp_floats(self, heads: Heads) -> int:
        """Floats of shared memory for a warp's results, or queries before that (kWarpFloats)."""
        if self.num_new_tokens == 1:
            return self.part_floats(heads)
        octets = -(-self.tokens * heads.group // _OCTET)
        return max(self.part_floats(heads), octets * 4 * heads.head_dim)

    def table_bytes(self, bound: int) -> int:
        """Bytes of a split table of up to ``bound`` items (split.cuh, items.cuh)."""
        return (8 if self.num_new_tokens == 1 else 12) * bound + 36


def decode(
    output: Buffer,
    tokens: NewTokens,
    *,
    device: Device,
    scores: Scores,
    max_seqs: int,
    max_sms: int,
    few_rows: bool,
    items: DecodeItems,
) -> Launch | None:
    """Attention of the leading num_decode_seqs sequences, of few new tokens each; None if ``device`` is too small.

    At most ``max_seqs`` of them have new tokens. ``max_sms`` bounds the blocks of the grid. With ``few_rows``, the
    kernel leaves shared memory to the next one, which may then start while it runs.
    """
    heads, cache = tokens.heads, tokens.cache
    bound = max(_MIN_MAX_ITEMS, 1 << (max_seqs * items.of_sequence - 1).bit_length())
    defines = heads.defines() | scores.defines() | items.defines() | {"TL_MAX_ITEMS": bound, "TL_MAX_GRID": max_sms}
    specialised = _kernel(heads, defines, device, few_rows, items)
    if specialised is None:
        return None
    partials = Buffer("attention_partials", "float32", ("num_sms", 2 * items.result_floats(heads)))
    sections = heads.num_sections  # in which layers may differ
    arrivals = Buffer(f"attention_arrivals_{sections}", "int32", ("num_seqs", sections), "state")
    tensors = (output, tokens.query, cache.keys, cache.values, cache.past_lens, cache.tables)
    of_tokens = cache.token_slots if items.num_new_tokens == 1 else cache.cu_seqlens
    pointers = (*tensors, partials, arrivals, scores.sinks, of_tokens)
    grid = (symbol("num_sms"), one_if("num_decode_seqs"))
    numbers = (symbol("num_decode_seqs"), cache.table_stride, specialised.shared_bytes)
    return launch(specialised, grid, *pointers, heads.y_factor, *numbers, *scores.arguments())


def _kernel(heads: Heads, defines: dict[str, int], device: Device, few_rows: bool, items: DecodeItems) -> Kernel | None:
    """Choose the kernel with the most warps whose rings have at least two stages."""
    for warps in (8, 4, 2, 1):
        modest = few_rows and warps >= 4 and heads.group <= 4
        shared_bytes = min(device.shared_bytes, _MODEST_SHARED_BYTES) if modest else device.shared_bytes
        table = items.table_bytes(defines["TL_MAX_ITEMS"])
        scratch = 2 * defines["TL_MAX_GRID"] * items.part_rows(heads)
        results = max(warps * items.warp_floats(heads), scratch) * 4 + 32
        barriers = warps * _MAX_STAGES * 8 + 128
        stage = warps * _TILE_TOKENS * heads.head_dim * heads.pair_bytes
        if shared_bytes - table - results - barriers >= 2 * stage:
            reason = f"{warps} warps are the most whose ring has two stages in {shared_bytes} bytes of shared memory"
            how = (32 * warps, shared_bytes, defines | {"TL_WARPS": warps}, reason)
            return kernel("paged_attention/decode.cuh", "paged_attention_decode", *how)
    return None
