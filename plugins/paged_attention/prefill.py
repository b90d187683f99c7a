"""The launches for prefill rows: attention of any number of new tokens, and the conversion of what they see."""

from __future__ import annotations

from dataclasses import dataclass

from ..launch import Buffer, Device, Extent, Kernel, Launch, kernel, launch, symbol
from .launches import WIDE_DIM, Cache, Heads, RowKind, Scores, one_if

_PREFILL = "paged_attention_prefill"
_MAX_DIM_OF_128_ROWS = 128
_MMA_STEPS = (64, 32, 16)  # keys and values of a stage
_WGMMA_ARCH, _WGMMA_DIMS = "sm_90a", (64, 80, 96, 128, 256)
_WIDENING_THREADS, WIDENING_BLOCKS = 256, 4  # threads of a block, and blocks per SM
_MAX_WIDE_BYTES = 1 << 29  # what does not fit is converted in the tiles of attention
# New tokens from which a sequence's keys and values are widened. On an H200 (8B, E4M3) prompts of 1,024 tokens take as
# long either way, and one of 8,192 tokens 1,010 us instead of 1,140.
WIDE_TOKENS = 1024


@dataclass(frozen=True)
class WideCache:
    """Copies in float16 of the cache blocks, of bytes, that long prompts see in one layer: see wide_cache.cuh.

    There is none of keys that have 16 bits.
    """

    keys: Buffer | None = None
    values: Buffer | None = None
    num_blocks: int = 0

    @property
    def arguments(self) -> tuple[Buffer | int | None, ...]:
        """The fields of ``WideCache`` in wide_cache.cuh."""
        return self.keys, self.values, self.num_blocks


NOT_WIDE = WideCache()


def wide_cache(name: str, heads: Heads, num_tokens: int, max_blocks_per_seq: int) -> WideCache:
    """Make the wide cache of layer ``name`` for steps of up to ``num_tokens`` new tokens.

    It has room for the longest sequence, and for prompts without past tokens.
    """
    page = heads.tokens_per_block
    block = (heads.num_kv_heads, page, heads.head_dim)
    prompts = -(-num_tokens // page) + num_tokens // WIDE_TOKENS  # the last block of each may be partly filled
    kinds = ("keys", "values") if heads.key_type else ("values",)
    block_bytes = len(kinds) * 2 * heads.num_kv_heads * page * heads.head_dim
    num_blocks = min(max(max_blocks_per_seq, prompts), _MAX_WIDE_BYTES // block_bytes)
    made = {kind: Buffer(f"{name}.wide_{kind}", "float16", (num_blocks, *block)) for kind in kinds}
    return WideCache(made.get("keys"), made["values"], num_blocks)


def widening(heads: Heads, scores: Scores) -> Kernel:
    """The kernel of :func:`widen`."""
    macros = {"TL_KV_HEADS", "TL_HEAD_DIM", "TL_PAGE", "TL_BLOCK_BYTES", "TL_CACHE_TYPE", "TL_KEY_TYPE", "TL_CHUNKED"}
    defines = {name: value for name, value in (heads.defines() | scores.defines()).items() if name in macros}
    defines |= {"TL_FP16": 1, "TL_WIDE_TOKENS": WIDE_TOKENS}
    return kernel("paged_attention/widen.cuh", "widen_cache", _WIDENING_THREADS, 0, defines)


def widen(wide: WideCache, cache: Cache, *, heads: Heads, scores: Scores) -> Launch:
    """Convert what long prompts see of bytes in the cache to ``wide``."""
    specialised = widening(heads, scores)
    grid = (symbol("num_sms", WIDENING_BLOCKS), one_if("num_prefill_seqs"))
    numbers = (symbol("num_prefill_seqs"), cache.table_stride, scores.window, wide.num_blocks)
    pointers = (wide.keys, wide.values, cache.keys, cache.values, *cache.sequences("prefill"))
    return launch(specialised, grid, *pointers, *numbers)


def prefill(
    output: Buffer,
    query: Buffer,
    cache: Cache,
    *,
    heads: Heads,
    device: Device,
    scores: Scores,
    num_new_tokens: int = 0,
    wide: WideCache = NOT_WIDE,
) -> Launch | None:
    """Attention of the sequences after the decode rows, any number of tokens each; None if ``device`` is too small.

    If ``num_new_tokens`` is given, it is of the decode rows instead, of up to that many new tokens each. A row's result
    depends on its sequence alone, bit for bit, whether it is a decode row or not: tiles of keys begin at multiples of
    their length, and a tile that a row does not see adds zero to its sums. (With a window they begin at multiples of a
    cache block, if that is shorter.) Long prompts read ``wide``, if it has blocks, with the same results.
    """
    uses_wgmma = device.arch == _WGMMA_ARCH and heads.head_dim in _WGMMA_DIMS
    if heads.cache_type and not uses_wgmma:
        return None
    specialised, grid = (_wgmma_prefill if uses_wgmma else _mma_prefill)(heads, scores, device, num_new_tokens)
    if specialised.shared_bytes > device.shared_bytes:
        return None
    of = _kind(num_new_tokens)
    seqs = cache.sequences(of)
    numbers = (symbol(f"num_{of}_seqs"), cache.table_stride)
    pointers = (output, query, cache.keys, cache.values, *seqs, scores.sinks)
    taken = Buffer("attention_items_taken", "int32", (1,), "state")
    extra = (taken, *wide.arguments) if uses_wgmma else ()
    return launch(specialised, grid, *pointers, heads.y_factor, *numbers, *scores.arguments(), *extra)


def _kind(num_new_tokens: int) -> RowKind:
    return "decode" if num_new_tokens else "prefill"


def _wgmma_prefill(
    heads: Heads, scores: Scores, device: Device, num_new_tokens: int
) -> tuple[Kernel, tuple[Extent, ...]]:
    """The wgmma kernel, whose blocks take work items until there are none, and its grid."""
    of = _kind(num_new_tokens)
    shared_bytes, threads = wgmma_extents(heads, of)
    defines = heads.defines() | scores.defines()
    defines |= {"TL_SHARED_BYTES": shared_bytes, "TL_WIDE_TOKENS": WIDE_TOKENS, "TL_NEW_TOKENS": num_new_tokens}
    source, reason = "paged_attention/prefill_wgmma.cuh", f"{device.arch} has wgmma"
    blocks = 2 if of == "decode" and heads.head_dim <= _MAX_DIM_OF_128_ROWS else 1
    grid = (symbol("num_sms", blocks), one_if(f"num_{of}_seqs"))
    return kernel(source, _PREFILL, threads, shared_bytes, defines, reason), grid


def wgmma_extents(heads: Heads, of: RowKind) -> tuple[int, int]:
    """Bytes of shared memory, and threads, of the wgmma kernel (kSharedBytes and kThreads of prefill_producer.cuh)."""
    step, queries = (128, 2) if heads.head_dim <= 128 else (64, 1)
    tile = step * heads.head_dim
    # Five stages of two-byte elements, or four and two raw stages of one-byte elements, which take as much, whether
    # keys are bytes or not.
    consumers, stages = 2, 5 * 2 * tile
    if of == "decode":
        consumers, stages = 1, (2 * 2 + (2 if heads.cache_type else 0)) * tile
        queries = 1 if heads.cache_type else queries
    query = 64 * -(-heads.head_dim // 64) * 128
    return queries * consumers * query + stages + 320, (1 + consumers) * 128


def _mma_prefill(
    heads: Heads, scores: Scores, device: Device, num_new_tokens: int
) -> tuple[Kernel, tuple[Extent | int, ...]]:
    """The mma.sync kernel, with two stages of as many keys and values as shared memory has room for, and its grid."""
    rows, pitch = 128 if heads.head_dim <= _MAX_DIM_OF_128_ROWS else 64, heads.head_dim * 2 + 16
    sizes = [(rows + 4 * step) * pitch for step in _MMA_STEPS]
    shared_bytes = next((size for size in sizes if size <= device.shared_bytes), sizes[-1])
    threads = 128 if heads.head_dim <= WIDE_DIM else 256
    defines = heads.defines() | scores.defines() | {"TL_SHARED_BYTES": shared_bytes}
    source, reason = "paged_attention/prefill.cuh", f"no wgmma on {device.arch} for a head_dim of {heads.head_dim}"
    tokens = rows // heads.group  # of a block
    if num_new_tokens:
        blocks = symbol("num_decode_seqs", -(-num_new_tokens // tokens))
    else:  # a bound on the sum over sequences of ceil(tokens of the sequence / tokens of a block)
        blocks = symbol("num_prefill_seqs") + symbol("num_prefill_tokens", 1, tokens)
    return kernel(source, _PREFILL, threads, shared_bytes, defines, reason), (heads.num_sections, blocks)
