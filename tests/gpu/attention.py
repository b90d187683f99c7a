"""Specialises and launches the attention kernels."""

import ctypes
from dataclasses import replace

import torch

from tests.gpu.device import GPU, Machine
from tests.gpu.kernels import WHOLE_SM_BYTES, ModelShape
from tests.gpu.memory import NAMES
from tests.gpu.paged import CacheTypes, poisoned
from trtllm_lite.plugins.cuda.row_scales import RowScales
from trtllm_lite.plugins.launch import Buffer
from trtllm_lite.plugins.paged_attention.decode import DecodeItems
from trtllm_lite.plugins.paged_attention.launches import Heads, Scores
from trtllm_lite.plugins.paged_attention.prefill import WIDE_TOKENS, WIDENING_BLOCKS, wgmma_extents, widening

_ROWS = ("output", "query", "key_cache", "value_cache")
DECODE_POINTERS = (*_ROWS, "past_lens", "block_tables", "partials", "arrivals", "sinks", "of_tokens")
PREFILL_POINTERS = (*_ROWS, "cu_seqlens", "past_lens", "block_tables", "sinks")
DECODE_NUMBERS = ("num_seqs", "max_blocks", "shared_bytes", "window")
PREFILL_NUMBERS = ("num_seqs", "max_blocks", "window")


def _arguments(
    pointers: tuple[str, ...], numbers: tuple[str, ...], scores: Scores, *, wgmma: bool = False
) -> type[ctypes.Structure]:
    """``DecodeArguments``, ``PrefillArguments`` or, with ``wgmma``, ``WgmmaArguments`` of the kernels."""
    fields = (
        *((name, ctypes.c_void_p) for name in pointers),
        ("y_factor", ctypes.c_float),
        *((name, ctypes.c_int) for name in numbers),
        *((name, ctypes.c_float) for name in ("value_scale", "scale")),
        *((name, ctypes.c_float) for name in ("rate", "height") if scores.softcap),
        *((name, ctypes.c_int) for name in ("floor_scale", "floor_offset") if scores.floor_scale),
        *((("attn_scale", ctypes.c_float),) if scores.floor_scale else ()),
        *(((name, ctypes.c_void_p) for name in ("taken", "wide_keys", "wide_values")) if wgmma else ()),
        *((("wide_blocks", ctypes.c_int),) if wgmma else ()),
    )
    return type("Arguments", (ctypes.Structure,), {"_fields_": fields})


def _heads(shape: ModelShape, dtype: torch.dtype, types: CacheTypes, y_scales: RowScales | None) -> Heads:
    extents = (shape.heads, shape.kv_heads, shape.head_dim, shape.page)
    names = (NAMES[dtype], NAMES[types.values])
    return Heads(*extents, *names, types.block_bytes(*extents[1:]), 0, y_scales, NAMES[types.keys])


def _scores(
    shape: ModelShape,
    softcap: float,
    types: CacheTypes,
    first_position: int,
    sinks: torch.Tensor | None,
    chunked: bool,
    temperature: tuple[int, int, float] | None,
) -> Scores:
    """The macros and arguments of scores, for any window."""
    key_scale, value_scale = types.scales
    scores = Buffer("sinks", "float32", (shape.heads,)) if sinks is not None else None
    more = (value_scale, first_position, scores, chunked, *(temperature or (0, 0, 0.0)))
    return Scores(shape.head_dim**-0.5 * key_scale, 0, softcap, *more)


def _address(sinks: torch.Tensor | None) -> int | None:
    return None if sinks is None else sinks.data_ptr()


def _with(tensors: tuple[torch.Tensor, ...], sinks: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    return tensors if sinks is None else (*tensors, sinks)


def _factor(y_scales: RowScales | None) -> float:
    return 1.0 if y_scales is None else 1 / y_scales.value


class DecodeAttention:
    """Attention of few new tokens per sequence over the paged cache, which already holds their keys and values."""

    def __init__(
        self,
        shape: ModelShape,
        dtype: torch.dtype = torch.bfloat16,
        *,
        softcap: float = 0.0,
        sinks: torch.Tensor | None = None,
        first_position: int = 0,
        chunked: bool = False,
        temperature: tuple[int, int, float] | None = None,
        warps: int = 0,
        shared_bytes: int = 0,
        blocks_per_sm: int = 1,
        max_items: int = 256,
        y_scales: RowScales | None = None,
        cache_dtype: torch.dtype | None = None,
        plain_keys: bool = False,
        num_new_tokens: int = 1,
        item_tokens: int = 0,
        machine: Machine = GPU,
    ) -> None:
        """Sinks are float32 [heads]; ``cache_dtype`` is the type of an 8-bit cache, if ``plain_keys`` of values alone.

        ``chunked``: windows are chunks; ``temperature``: floor_scale, floor_offset and attn_scale. Sequences have up to
        ``num_new_tokens`` new tokens, of which an item has ``item_tokens`` (default: as :class:`DecodeItems` divides).
        """
        self.sinks, self.y_scales = sinks, y_scales
        types = CacheTypes.of(dtype, cache_dtype, plain_keys)
        self.scores = _scores(shape, softcap, types, first_position, sinks, chunked, temperature)
        heads = _heads(shape, dtype, types, y_scales)
        # Two stages fit for 4 warps, and for 8 if rows have half the bytes.
        many = shape.head_dim <= 128 and heads.group <= 8
        short = shape.head_dim * types.pair_bytes <= 256
        warps = warps or (8 if many and short else 4 if many else 2)
        shared_bytes = shared_bytes or (160 * 1024 if many and heads.group <= 4 else WHOLE_SM_BYTES)
        self.grid = machine.num_sms * blocks_per_sm
        items = DecodeItems.of(heads, num_new_tokens)
        items = DecodeItems(items.num_new_tokens, item_tokens or items.tokens)
        defines = heads.defines() | self.scores.defines() | items.defines()
        defines |= {"TL_WARPS": warps, "TL_MAX_ITEMS": max_items, "TL_MAX_GRID": self.grid}
        name = "paged_attention_decode"
        self.kernel = machine.kernel("paged_attention/decode.cuh", name, 32 * warps, shared_bytes, defines)
        self.partials = torch.empty(2 * self.grid * items.result_floats(heads), device=machine.device)
        self.arrivals = torch.zeros(max_items * heads.num_sections, device=machine.device, dtype=torch.int32)

    def __call__(
        self,
        output: torch.Tensor,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        past_lens: torch.Tensor,
        block_tables: torch.Tensor,
        of_tokens: torch.Tensor,
        *,
        window: int = 0,
        programmatic: bool = False,
    ) -> None:
        """``of_tokens``: the slot of each sequence's new token, or cu_seqlens if there may be several."""
        tensors = (output, query, key_cache, value_cache, past_lens, block_tables, self.partials, self.arrivals)
        assert all(tensor.is_contiguous() for tensor in (*tensors, of_tokens))
        pointers = (*(tensor.data_ptr() for tensor in tensors), _address(self.sinks), of_tokens.data_ptr())
        more = replace(self.scores, window=window).arguments()
        factor = _factor(self.y_scales)
        numbers = (factor, len(past_lens), block_tables.shape[1], self.kernel.shared_bytes, *more)
        arguments = _arguments(DECODE_POINTERS, DECODE_NUMBERS, self.scores)(*pointers, *numbers)
        memory = (*_with(tensors, self.sinks), of_tokens)
        self.kernel(arguments, grid=self.grid, programmatic=programmatic, memory=memory)


class WidenCache:
    """Conversion of what long prompts see from a cache of bytes to float16."""

    def __init__(
        self, shape: ModelShape, heads: Heads, scores: Scores, num_blocks: int, num_tokens: int, machine: Machine
    ) -> None:
        """There is room for ``num_blocks``; a long prompt has ``num_tokens`` new tokens."""
        blocks = (num_blocks, shape.kv_heads, shape.page, shape.head_dim)
        kinds = 2 if heads.key_type else 1  # keys of 16 bits have no copy
        copies = [poisoned(*blocks, dtype=torch.float16, device=machine.device) for _ in range(kinds)]
        self.keys, self.values = copies[0] if kinds == 2 else None, copies[-1]
        self.grid = machine.num_sms * WIDENING_BLOCKS
        kernel = widening(heads, scores)
        defines = dict(kernel.defines) | {"TL_WIDE_TOKENS": num_tokens}
        self.kernel = machine.kernel(kernel.source, kernel.name, kernel.threads, kernel.shared_bytes, defines)

    def __call__(
        self,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        cu_seqlens: torch.Tensor,
        past_lens: torch.Tensor,
        block_tables: torch.Tensor,
        window: int,
        programmatic: bool,
    ) -> None:
        tensors = (self.keys, self.values, key_cache, value_cache, cu_seqlens, past_lens, block_tables)
        numbers = (len(past_lens), block_tables.shape[1], window, len(self.values))
        self.kernel(*tensors, *numbers, grid=self.grid, programmatic=programmatic)


class PrefillAttention:
    """Causal attention of packed new tokens over the paged cache, which already holds their keys and values."""

    WGMMA_DIMS = (64, 80, 96, 128, 256)

    def __init__(
        self,
        shape: ModelShape,
        dtype: torch.dtype = torch.bfloat16,
        *,
        softcap: float = 0.0,
        sinks: torch.Tensor | None = None,
        first_position: int = 0,
        chunked: bool = False,
        temperature: tuple[int, int, float] | None = None,
        wgmma: bool = True,
        mma_step: int = 64,
        y_scales: RowScales | None = None,
        cache_dtype: torch.dtype | None = None,
        plain_keys: bool = False,
        wide_blocks: int = 0,
        wide_tokens: int = WIDE_TOKENS,
        num_new_tokens: int = 0,
        machine: Machine = GPU,
    ) -> None:
        """With ``wgmma``, use it where the GPU and head_dim allow; else ``mma_step`` keys at a time, 64, 32 or 16.

        ``num_new_tokens``: with wgmma, the kernel is that of sequences of up to as many new tokens; 0: of any number.

        ``sinks``: float32 [heads]; ``cache_dtype``: the type of an 8-bit cache, which wgmma reads, if ``plain_keys`` of
        values alone. Of sequences of ``wide_tokens`` new tokens, up to ``wide_blocks`` of its blocks are converted
        before. ``chunked``: windows are chunks; ``temperature``: floor_scale, floor_offset and attn_scale.
        """
        self.sinks, self.y_scales = sinks, y_scales
        types = CacheTypes.of(dtype, cache_dtype, plain_keys)
        self.shape, self.machine = shape, machine
        self.scores = _scores(shape, softcap, types, first_position, sinks, chunked, temperature)
        self.wgmma = wgmma and machine.arch == "sm_90a" and shape.head_dim in self.WGMMA_DIMS
        heads = _heads(shape, dtype, types, y_scales)
        rows, threads = 128 if self.wgmma or shape.head_dim <= 128 else 64, 128 if shape.head_dim <= 256 else 256
        if self.wgmma:
            shared_bytes, threads = wgmma_extents(heads, "decode" if num_new_tokens else "prefill")
        else:  # queries and two stages of keys and values
            shared_bytes = (rows + 4 * mma_step) * (shape.head_dim * 2 + 16)
        self.tokens_per_block, self.num_sections = rows // heads.group, heads.num_sections
        defines = heads.defines() | self.scores.defines() | {"TL_SHARED_BYTES": shared_bytes}
        defines |= {"TL_WIDE_TOKENS": wide_tokens, "TL_NEW_TOKENS": num_new_tokens} if self.wgmma else {}
        source = f"paged_attention/prefill{'_wgmma' if self.wgmma else ''}.cuh"
        self.kernel = machine.kernel(source, "paged_attention_prefill", threads, shared_bytes, defines)
        self.taken = torch.zeros(1, device=machine.device, dtype=torch.int32)
        self.widen = WidenCache(shape, heads, self.scores, wide_blocks, wide_tokens, machine) if wide_blocks else None

    def __call__(
        self,
        output: torch.Tensor,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        cu_seqlens: torch.Tensor,
        past_lens: torch.Tensor,
        block_tables: torch.Tensor,
        *,
        window: int = 0,
        programmatic: bool = False,
        widens: bool = True,
    ) -> None:
        """``widens``: convert what long prompts see, which otherwise has been done."""
        tensors = (output, query, key_cache, value_cache, cu_seqlens, past_lens, block_tables)
        assert all(tensor.is_contiguous() for tensor in tensors)
        scores = replace(self.scores, window=window).arguments()
        numbers = (_factor(self.y_scales), len(past_lens), block_tables.shape[1], *scores)
        wide = (self.widen.keys, self.widen.values) if self.widen else ()
        if self.widen and widens:
            self.widen(key_cache, value_cache, cu_seqlens, past_lens, block_tables, window, programmatic)
        places = [None if tensor is None else tensor.data_ptr() for tensor in wide] or [None, None]
        taken = (self.taken.data_ptr(), *places, len(wide[1]) if wide else 0) if self.wgmma else ()
        values = (*(tensor.data_ptr() for tensor in tensors), _address(self.sinks), *numbers, *taken)
        arguments = _arguments(PREFILL_POINTERS, PREFILL_NUMBERS, self.scores, wgmma=self.wgmma)(*values)
        blocks = len(query) // self.tokens_per_block + len(past_lens)  # >= the sum of the rounded-up quotients
        grid = self.machine.num_sms if self.wgmma else (self.num_sections, blocks, 1)
        memory = (*_with(tensors, self.sinks), *(tensor for tensor in wide if tensor is not None))
        self.kernel(arguments, grid=grid, programmatic=programmatic, memory=memory)
