"""Common parts of the launches of attention."""

from __future__ import annotations

from dataclasses import dataclass
from math import e, log2
from typing import Literal, TypeAlias

from trtllm_lite.common.vocabulary import DTYPES

from ..cuda.row_scales import ROW_TYPES, RowScales, row_type
from ..launch import (
    DTYPE_FLAGS,
    Buffer,
    Extent,
    Operand,
    Slice,
    features,
    symbol,
)

# A step's sequences: decode rows, of one new token each and drafts after it, come before those of any number of tokens.
RowKind: TypeAlias = Literal["decode", "prefill"]
WIDEST_TILE = 128  # keys; a multiple of every kernel's tile
_MANY = 1 << 29  # more than any number of sequences; the runtime allows no larger divisor
WIDE_DIM, _MAX_DIM = 256, 512
# Query heads of a section (sections.cuh says so, too): registers hold the results of fewer rows if heads are wide.
_MOST_OF_SECTION, _MOST_OF_WIDE_SECTION = 16, 8
# The error of scores is cap * 2^-21 (score_scale.cuh): with this cap 2^-12, the precision of weights in float16.
_MAX_SOFTCAP = 512
_BYTE_DIMS = (64, 96, 128, 256)  # supported head_dims with a cache of bytes


@dataclass(frozen=True)
class Heads:
    """The extents that the kernels of a layer are specialised for."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    tokens_per_block: int
    dtype: str
    cache_dtype: str
    block_bytes: int  # from a block of the layer's keys or values to the next
    rotary_dim: int  # leading elements of a query or key head that RoPE rotates; 0: no RoPE
    y_scales: RowScales | None = None  # the scale of results that are quantized
    key_dtype: str | None = None  # of keys, if it is not ``cache_dtype``

    @property
    def num_sections(self) -> int:
        """Sections of query heads that share a key/value head, each of which attends for itself (sections.cuh)."""
        return self.num_kv_heads * self._of_each

    @property
    def group(self) -> int:
        """The query heads of a section, of which the last of a key/value head may have fewer."""
        return -(-self._sharing // self._of_each)

    @property
    def _sharing(self) -> int:
        return self.num_heads // self.num_kv_heads

    @property
    def _of_each(self) -> int:
        """The sections of a key/value head."""
        return -(-self._sharing // (_MOST_OF_SECTION if self.head_dim <= WIDE_DIM else _MOST_OF_WIDE_SECTION))

    @property
    def y_factor(self) -> float:
        """The factor of results before they are quantized."""
        return 1.0 if self.y_scales is None else 1 / self.y_scales.value

    @property
    def pair_bytes(self) -> int:
        """Bytes of an element of a key and one of a value."""
        return sum(DTYPES[dtype].bits // 8 for dtype in (self.key_dtype or self.cache_dtype, self.cache_dtype))

    @property
    def cache_type(self) -> int:
        """The RowType of values, for macros; 0 is 16 bits."""
        return ROW_TYPES.get(self.cache_dtype, 0)

    @property
    def key_type(self) -> int:
        """The RowType of keys."""
        return ROW_TYPES.get(self.key_dtype or self.cache_dtype, 0)

    @property
    def query_dtype(self) -> str:
        """The type in which queries are multiplied by keys."""
        return "float16" if self.key_type else self.dtype

    def rope_defines(self) -> dict[str, int]:
        """Macros of the kernels that apply RoPE."""
        return self._extents() | {"TL_FP16": DTYPE_FLAGS[self.dtype], "TL_ROTARY_DIM": self.rotary_dim}

    def defines(self) -> dict[str, int]:
        """Macros of the attention kernels."""
        flags = {"TL_FP16": DTYPE_FLAGS[self.query_dtype], "TL_Y_FP16": DTYPE_FLAGS[self.dtype]}
        return self._extents() | flags | {"TL_Y_TYPE": row_type(self.y_scales)}

    def _extents(self) -> dict[str, int]:
        return {
            "TL_HEADS": self.num_heads,
            "TL_KV_HEADS": self.num_kv_heads,
            "TL_HEAD_DIM": self.head_dim,
            "TL_PAGE": self.tokens_per_block,
            "TL_BLOCK_BYTES": self.block_bytes,
            "TL_CACHE_TYPE": self.cache_type,
            "TL_KEY_TYPE": self.key_type,
        }

    def problems(self) -> list[str]:
        """A sentence for each property that the kernels do not support."""
        found = []
        if self.rotary_dim % 4:
            found.append(f"RoPE rotates {self.rotary_dim} elements of a head, expected a multiple of 4")
        if self.head_dim % 32 if self.head_dim > WIDE_DIM else self.head_dim % 16:
            found.append(f"head_dim is {self.head_dim}, expected a multiple of 16, beyond {WIDE_DIM} of 32")
        if self.head_dim > _MAX_DIM:
            found.append(f"head_dim is {self.head_dim}, expected at most {_MAX_DIM}")
        if self.cache_type and self.head_dim not in _BYTE_DIMS:
            dims = ", ".join(map(str, _BYTE_DIMS))
            found.append(
                f"head_dim is {self.head_dim} and values are {self.cache_dtype}, expected one of {dims}, or "
                f"--kv_cache_dtype {self.dtype}"
            )
        return found


@dataclass(frozen=True)
class Scores:
    """The steps from products of queries and keys to scores: ``scale``, the soft cap, the mask of ``window`` tokens.

    A ``softcap`` or ``window`` of 0 means none; a ``chunked`` window does not move with the query. ``scale`` includes
    the scale of stored keys; ``value_scale`` is that of stored values. Positions before ``first_position`` are masked
    too. ``sinks`` [heads] are scores of an additional key with value zero. Unless ``floor_scale`` is 0, late queries
    are multiplied by the temperature in ``schema.toml``.
    """

    scale: float
    window: int
    softcap: float
    value_scale: float = 1.0
    first_position: int = 0
    sinks: Buffer | None = None
    chunked: bool = False
    floor_scale: int = 0
    floor_offset: int = 0
    attn_scale: float = 0.0

    def defines(self) -> dict[str, int]:
        """Macros of the kernels that compute scores."""
        flags = {"TL_SOFTCAP": int(self.softcap > 0), "TL_SINKS": int(self.sinks is not None)}
        flags |= {"TL_CHUNKED": int(self.chunked), "TL_TEMPERATURE": int(self.floor_scale > 0)}
        return {**flags, "TL_FIRST_POSITION": self.first_position}

    def arguments(self) -> tuple[float, ...]:
        """Arguments of these kernels, in order: the window, the scale of values, and the fields of ``ScoreScale``."""
        cap = (-2 / self.softcap, 2 * self.softcap * log2(e)) if self.softcap > 0 else ()
        temperature = (self.floor_scale, self.floor_offset, self.attn_scale) if self.floor_scale > 0 else ()
        return self.window, self.value_scale, self.scale * log2(e), *cap, *temperature

    def problems(self) -> list[str]:
        """A sentence for each property that the kernels do not support."""
        if self.softcap <= _MAX_SOFTCAP:
            return []
        return [f"softcap is {self.softcap}, expected at most {_MAX_SOFTCAP}, up to which scores are precise"]


@dataclass(frozen=True)
class Cache:
    """The paged cache of a layer, and how the step's sequences lie in it."""

    keys: Operand
    values: Operand
    cu_seqlens: Buffer
    past_lens: Buffer
    block_tables: Buffer  # [sequences * cache groups, columns]
    slots: Buffer  # [cache groups, num_tokens]
    group: int
    key_scale: float = 1.0  # factor of stored keys
    value_scale: float = 1.0

    @property
    def num_groups(self) -> int:
        """The number of cache groups of the engine, each with a block table for every sequence."""
        num_groups = self.slots.shape[0]
        assert isinstance(num_groups, int)
        return num_groups

    @property
    def table_stride(self) -> Extent:
        """Entries from one sequence's block table to the next one's."""
        return symbol("max_blocks_per_seq", self.num_groups)

    @property
    def factors(self) -> tuple[float, float]:
        """The factors by which keys and values are multiplied when they are stored."""
        return 1 / self.key_scale, 1 / self.value_scale

    @property
    def tables(self) -> Slice:
        """The block table of the first sequence in the layer's cache group."""
        return Slice(self.block_tables, symbol("max_blocks_per_seq", 4 * self.group) if self.group else Extent(0))

    @property
    def prefill_tables(self) -> Slice:
        """The block table, in the layer's cache group, of the first sequence after the decode rows."""
        # The number of columns is the same in all steps, so no product of two symbols is needed.
        skipped = symbol("num_decode_seqs", 4 * self.num_groups * features(self.block_tables))
        return Slice(self.block_tables, self.tables.offset + skipped)

    def sequences(self, of: RowKind) -> tuple[Operand, Operand, Operand]:
        """Ends, past lengths and block tables of the sequences from the first of a kind on."""
        if of == "decode":
            return self.cu_seqlens, self.past_lens, self.tables
        first = symbol("num_decode_seqs", 4)
        return Slice(self.cu_seqlens, first), Slice(self.past_lens, first), self.prefill_tables

    @property
    def token_slots(self) -> Slice:
        """The slots of tokens in the layer's cache group."""
        return Slice(self.slots, symbol("num_tokens", 4 * self.group) if self.group else Extent(0))


def one_if(name: str) -> Extent:
    """The extent 1, or 0 if the symbol is 0, so that nothing is launched then."""
    return symbol(name, 1, _MANY)
