"""Launches of latent attention: absorption of queries, attention for both kinds of rows, and values from means.

All are for one layer, whose absorbed queries are [tokens, heads, latent_dim + rotary_dim].
"""

from __future__ import annotations

from dataclasses import dataclass
from math import e, log2

from ..launch import DTYPE_FLAGS, Buffer, Device, Extent, Kernel, Launch, Operand, kernel, launch, symbol
from ..paged_attention.launches import Cache, RowKind, one_if

ATTENDING_ARCH = "sm_90a"
_PRODUCT_THREADS, _ATTEND_THREADS = 128, 384
_STEP, _ITEM_ROWS, _STAGES = 64, 64, 2  # of attend.cuh
_FEW_ROWS, _MANY_ROWS = 16, 64  # rows of a tile of a head's product
_APPENDED_ROWS = 16  # rows that a block of absorb.cuh appends
_MOST_WEIGHTS = 16 * 1024  # weight elements of a tile
_TABLE_BYTES = 36  # bytes of a split table beside those of its items
_ITEMS_STEP = 64  # engines for batches of about the same size share kernels


@dataclass(frozen=True)
class LatentHeads:
    """The extents that the kernels of a layer are specialised for."""

    num_heads: int
    plain_dim: int
    rotary_dim: int
    value_dim: int
    latent_dim: int
    tokens_per_block: int
    block_bytes: int  # from a block of the layer's latents or keys to the next
    dtype: str

    @property
    def query_dim(self) -> int:
        """Elements of an absorbed query."""
        return self.latent_dim + self.rotary_dim

    @property
    def head_blocks(self) -> int:
        """The number of parts into which a token's heads are divided; each part has rows of its own."""
        return -(-self.num_heads // _ITEM_ROWS)

    @property
    def block_heads(self) -> int:
        """The number of heads in a part."""
        return min(self.num_heads, _ITEM_ROWS)

    def defines(self) -> dict[str, int]:
        """Macros of the kernels that know the caches."""
        return {
            "TL_HEADS": self.num_heads,
            "TL_LATENT_DIM": self.latent_dim,
            "TL_ROTARY_DIM": self.rotary_dim,
            "TL_PAGE": self.tokens_per_block,
            "TL_BLOCK_BYTES": self.block_bytes,
            "TL_FP16": DTYPE_FLAGS[self.dtype],
        }

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory for attention without a split table."""
        tiles = (_ITEM_ROWS + _STAGES * _STEP) * self.query_dim * 2 + _ITEM_ROWS * _STEP * 2
        return tiles + _ITEM_ROWS * 4 + _STAGES * 16

    @property
    def item_tokens(self) -> int:
        """The most new tokens of a sequence that attend to its latents together."""
        return _ITEM_ROWS // self.block_heads

    def items_of_sequence(self, num_new_tokens: int) -> int:
        """The most items that ``num_new_tokens`` new tokens of a sequence are."""
        return -(-num_new_tokens // self.item_tokens)

    def most_items(self, device: Device, num_new_tokens: int) -> int:
        """The most items for which a split table also fits, in steps of engines that share kernels."""
        free = device.shared_bytes - self.shared_bytes - _TABLE_BYTES
        return free // _item_bytes(num_new_tokens) // _ITEMS_STEP * _ITEMS_STEP

    def problems(self) -> list[str]:
        """A sentence for each property that the kernels do not support."""
        found = []
        if self.latent_dim % 128 or self.latent_dim > 512:
            found.append(f"latents have {self.latent_dim} elements, expected a multiple of 128 up to 512")
        if self.rotary_dim != 64:
            found.append(f"the rotated part of a key has {self.rotary_dim} elements, expected 64")
        for what, size in (("plain part of a key", self.plain_dim), ("value", self.value_dim)):
            if size % 16:
                found.append(f"the {what} has {size} elements, expected a multiple of 16")
        return found


def _item_bytes(num_new_tokens: int) -> int:
    """Bytes of an item in a split table (split.cuh, items.cuh)."""
    return 8 if num_new_tokens == 1 else 12


def absorb(
    absorbed: Buffer,
    query: Operand,
    latent: Operand,
    key_up: Buffer,
    norm: tuple[Buffer, float],
    tables: tuple[Buffer, Buffer],
    cache: Cache,
    heads: LatentHeads,
    max_rows: int,
) -> Launch:
    """Multiply the plain parts of queries by ``key_up``, and store new latents and keys in the ``cache``.

    ``norm``: weight and epsilon of the norm of latents; ``tables``: cosines and sines of RoPE.
    """
    row = heads.num_heads * (heads.plain_dim + heads.rotary_dim)
    extents = {"TL_IN": heads.plain_dim, "TL_OUT": heads.latent_dim, "TL_X_STRIDE": row, "TL_X_HEAD": heads.plain_dim}
    extents |= {"TL_Y_STRIDE": heads.num_heads * heads.query_dim, "TL_Y_HEAD": heads.query_dim}
    tiles = _HeadTiles(heads, extents, max_rows, inputs_first=True)
    weight, epsilon = norm
    operands = (cache.keys, cache.values, query, latent, key_up, weight, *tables, cache.token_slots, epsilon)
    specialised = tiles.kernel("absorb", "absorb_queries", heads.defines())
    grid = tiles.grid(tiles.rows // _APPENDED_ROWS)
    return launch(specialised, grid, absorbed, *operands, symbol("num_tokens"))


def make_values(y: Buffer, mean: Operand, value_up: Buffer, heads: LatentHeads, max_rows: int) -> Launch:
    """Multiply means of latents by their head's ``value_up``."""
    extents = {"TL_IN": heads.latent_dim, "TL_OUT": heads.value_dim}
    extents |= {"TL_X_STRIDE": heads.num_heads * heads.latent_dim, "TL_X_HEAD": heads.latent_dim}
    extents |= {"TL_Y_STRIDE": heads.num_heads * heads.value_dim, "TL_Y_HEAD": heads.value_dim}
    tiles = _HeadTiles(heads, extents, max_rows, inputs_first=False)
    specialised = tiles.kernel("values", "make_values", {})
    return launch(specialised, tiles.grid(0), y, mean, value_up, symbol("num_tokens"))


@dataclass(frozen=True)
class _HeadTiles:
    """Tiles of a product in which each head has a matrix of its own (head_tile.cuh); ``extents`` are macros."""

    heads: LatentHeads
    extents: dict[str, int]
    max_rows: int
    inputs_first: bool

    @property
    def rows(self) -> int:
        """The number of rows in a tile."""
        return _FEW_ROWS if self.max_rows <= _FEW_ROWS else _MANY_ROWS

    @property
    def columns(self) -> int:
        """The number of columns in a tile."""
        depth, width = self.extents["TL_IN"], self.extents["TL_OUT"]
        return next(size for size in (128, 64, 32, 16) if width % size == 0 and size * depth <= _MOST_WEIGHTS)

    def kernel(self, source: str, name: str, more: dict[str, int]) -> Kernel:
        """The kernel ``name`` with the additional macros ``more``."""
        depth, rows, columns = self.extents["TL_IN"], self.rows, self.columns
        weight_rows, run = (depth, columns) if self.inputs_first else (columns, depth)
        shared_bytes = weight_rows * (2 * run + 16) + rows * (2 * depth + 16)
        defines = {"TL_HEADS": self.heads.num_heads, "TL_ROWS": rows, "TL_COLUMNS": columns}
        defines |= {"TL_INPUTS_FIRST": int(self.inputs_first), "TL_SHARED_BYTES": shared_bytes}
        defines |= {"TL_FP16": DTYPE_FLAGS[self.heads.dtype], **self.extents, **more}
        return kernel(f"latent_attention/{source}.cuh", name, _PRODUCT_THREADS, shared_bytes, defines)

    def grid(self, more_blocks: int) -> tuple[Extent | int, ...]:
        """One block per tile, and ``more_blocks`` blocks per tile of rows."""
        tiles = self.heads.num_heads * self.extents["TL_OUT"] // self.columns
        return tiles + more_blocks, symbol("num_tokens", 1, self.rows)


def decode(
    mean: Buffer,
    query: Buffer,
    cache: Cache,
    heads: LatentHeads,
    device: Device,
    scale: float,
    *,
    max_seqs: int,
    num_new_tokens: int,
) -> Launch | None:
    """Attention of the leading num_decode_seqs sequences, of up to ``num_new_tokens`` new tokens each.

    At most ``max_seqs`` have new tokens. None if a split table does not fit.
    """
    bound = -(-max_seqs * heads.items_of_sequence(num_new_tokens) // _ITEMS_STEP) * _ITEMS_STEP
    if bound > heads.most_items(device, num_new_tokens):
        return None
    shared_bytes = heads.shared_bytes + bound * _item_bytes(num_new_tokens) + _TABLE_BYTES
    defines = heads.defines() | {"TL_MAX_ITEMS": bound, "TL_SHARED_BYTES": shared_bytes}
    defines["TL_NEW_TOKENS"] = num_new_tokens
    row = min(num_new_tokens, heads.item_tokens) * heads.block_heads * (heads.latent_dim + 2)
    partials = Buffer("latent_partials", "float32", ("num_sms", 2 * row))
    arrivals = Buffer("latent_arrivals", "int32", ("num_seqs", heads.head_blocks), "state")
    places = (cache.cu_seqlens, cache.past_lens, cache.tables, symbol("num_decode_seqs"))
    grid = (symbol("num_sms"), one_if("num_decode_seqs"))
    return _attend(mean, query, cache, defines, grid, places, scale, partials, arrivals)


def prefill(
    mean: Buffer,
    query: Buffer,
    cache: Cache,
    heads: LatentHeads,
    device: Device,
    scale: float,
    *,
    num_new_tokens: int = 0,
) -> Launch | None:
    """Attention of the sequences after the decode rows or, with ``num_new_tokens``, of these, of up to as many each.

    None if ``device`` is too small.

    A row's result depends on its sequence alone, bit for bit, whether it is a decode row or not: a tile that a row does
    not see adds zero.
    """
    if heads.shared_bytes > device.shared_bytes:
        return None
    defines = heads.defines() | {"TL_SHARED_BYTES": heads.shared_bytes}
    of: RowKind = "decode" if num_new_tokens else "prefill"
    num_seqs = symbol(f"num_{of}_seqs")
    if num_new_tokens:
        blocks = symbol("num_decode_seqs", heads.items_of_sequence(num_new_tokens))
    else:  # a bound on the sum over sequences of ceil(tokens of the sequence / tokens of a block)
        blocks = num_seqs + symbol("num_prefill_tokens", 1, heads.item_tokens)
    places = (*cache.sequences(of), num_seqs)
    return _attend(mean, query, cache, defines, (blocks, heads.head_blocks), places, scale)


def _attend(
    mean: Buffer,
    query: Buffer,
    cache: Cache,
    defines: dict[str, int],
    grid: tuple[Extent | int, ...],
    places: tuple[Operand | Extent, ...],
    scale: float,
    partials: Buffer | None = None,
    arrivals: Buffer | None = None,
) -> Launch:
    shared_bytes, name = defines["TL_SHARED_BYTES"], "attend_latents"
    specialised = kernel("latent_attention/attend.cuh", name, _ATTEND_THREADS, shared_bytes, defines)
    rows = (mean, query, cache.keys, cache.values)
    return launch(specialised, grid, *rows, *places, cache.table_stride, scale * log2(e), partials, arrivals)
