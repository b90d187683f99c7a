"""Random PagedAttention problems; the cache is NaN in all slots but those of tokens that a window reaches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tests.plugins.harness import run


@dataclass(frozen=True)
class AttentionShape:
    """Extents and attributes of a PagedAttention call."""

    num_heads: int = 3
    num_kv_heads: int = 1
    head_dim: int = 64
    tokens_per_block: int = 32
    window: int = 0
    chunked: bool = False
    floor_scale: int = 0
    floor_offset: int = 0
    attn_scale: float = 0.0
    first_position: int = 0
    softcap: float = 0.0
    with_norm: bool = False
    norm_after_rope: int = 0
    with_value_norm: bool = False
    with_sinks: bool = False
    rotary_dim: int | None = None  # None: whole heads; 0: no RoPE
    num_groups: int = 1  # tables of each sequence
    cache_group: int = 0
    key_scale: float = 0.0078125  # of 8-bit caches; random keys and values are normally distributed
    value_scale: float = 0.03

    @property
    def attributes(self) -> dict[str, float]:
        """The attributes by their names in the schema."""
        return {
            "num_heads": self.num_heads,
            "scale": self.head_dim**-0.5,
            "window": self.window,
            "chunked": int(self.chunked),
            "floor_scale": self.floor_scale,
            "floor_offset": self.floor_offset,
            "attn_scale": self.attn_scale,
            "first_position": self.first_position,
            "cache_group": self.cache_group,
            "softcap": self.softcap,
            "norm_epsilon": 1e-6,
            "norm_after_rope": self.norm_after_rope,
            "appends": 1,
            "key_scale": self.key_scale,
            "value_scale": self.value_scale,
        }

    @property
    def qkv_features(self) -> int:
        """Number of features of one token's queries, keys and values."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


def poisoned(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """An array of NaN, or of a large integer."""
    return np.full(shape, 126 if dtype is np.int8 else np.nan, dtype)


class PagedCache:
    """Caches of ``dtype`` (of keys, if values have their own type), which hand out shuffled blocks to sequences.

    All elements are NaN, or a large integer.
    """

    def __init__(
        self,
        shape: AttentionShape,
        num_blocks: int,
        seed: int = 0,
        dtype: type = np.float32,
        value_dtype: type | None = None,
    ) -> None:
        self.shape = shape
        dims = (shape.head_dim, shape.tokens_per_block)
        self.keys = poisoned((num_blocks + 1, shape.num_kv_heads, *dims), dtype)
        self.values = poisoned((num_blocks + 1, shape.num_kv_heads, *dims[::-1]), value_dtype or dtype)
        self._nobodys, self._free = num_blocks, list(np.random.default_rng(seed).permutation(num_blocks))
        self._tables: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}

    def step_inputs(self, new_tokens: Sequence[tuple[int, int]]) -> list[np.ndarray]:
        """cu_seqlens, past_lens, block_tables for (sequence, number of new tokens) pairs.

        Unused entries are -1; entries that no window reaches, and tables of other groups, name a block full of NaN.
        """
        for sequence, count in new_tokens:
            length = self.lengths.get(sequence, 0) + count
            table = self._tables.setdefault(sequence, [])
            while len(table) * self.shape.tokens_per_block < length:
                table.append(self._free.pop())
        tables = np.full((len(new_tokens), 1 + max(len(self._tables[s]) for s, _ in new_tokens)), -1, np.int32)
        for row, (sequence, _) in enumerate(new_tokens):
            tables[row, : len(self._tables[sequence])] = self._tables[sequence]
            first = max(self.lengths.get(sequence, 0) - self.shape.window + 1, 0) if self.shape.window else 0
            tables[row, : first // self.shape.tokens_per_block] = self._nobodys
        of_groups = np.full((len(new_tokens), self.shape.num_groups, tables.shape[1]), self._nobodys, np.int32)
        of_groups[:, self.shape.cache_group] = tables
        cu_seqlens = np.cumsum([0, *(count for _, count in new_tokens)]).astype(np.int32)
        past_lens = np.array([self.lengths.get(sequence, 0) for sequence, _ in new_tokens], np.int32)
        return [cu_seqlens, past_lens, of_groups.reshape(-1, tables.shape[1])]

    def append(self, new_tokens: Sequence[tuple[int, int]], outputs: Mapping[str, np.ndarray]) -> None:
        """Store the caches that a step returned."""
        self.keys, self.values = outputs["key_cache_out"], outputs["value_cache_out"]
        for sequence, count in new_tokens:
            self.lengths[sequence] = self.lengths.get(sequence, 0) + count

    def tokens_of(self, sequence: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values [kv_heads, length, head_dim] as stored."""
        table, length = self._tables[sequence], self.lengths[sequence]
        keys = self.keys[table].transpose(1, 0, 3, 2).reshape(self.shape.num_kv_heads, -1, self.shape.head_dim)
        values = self.values[table].transpose(1, 0, 2, 3).reshape(self.shape.num_kv_heads, -1, self.shape.head_dim)
        return keys[:, :length], values[:, :length]


class Tokens:
    """The qkv rows and rotary angles of a few sequences, by sequence and position."""

    def __init__(self, shape: AttentionShape, lengths: Sequence[int], seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        half = (shape.head_dim if shape.rotary_dim is None else shape.rotary_dim) // 2
        angles = np.arange(max(lengths))[:, None] * (1e4 ** -(np.arange(half) / max(half, 1)))
        self.shape = shape
        self.cos, self.sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        self.qkv = [rng.standard_normal((length, shape.qkv_features), np.float32) for length in lengths]
        norms = rng.uniform(0.5, 1.5, (3, shape.head_dim)).astype(np.float32)
        self.norms = [*(norms[:2] if shape.with_norm else [None] * 2), norms[2] if shape.with_value_norm else None]
        # Some sinks are larger than the scores, some smaller.
        self.sinks = 4 * rng.standard_normal(shape.num_heads, np.float32) if shape.with_sinks else None

    def inputs(self, cache: PagedCache, new_tokens: Sequence[tuple[int, int]]) -> list[np.ndarray | None]:
        """All inputs of a call that appends the next ``count`` tokens of each ``(sequence, count)``."""
        spans = [(s, slice(cache.lengths.get(s, 0), cache.lengths.get(s, 0) + n)) for s, n in new_tokens]
        tables = (self.cos, self.sin)
        return [
            np.concatenate([self.qkv[s][span] for s, span in spans]),
            *(np.concatenate([table[span] for _, span in spans]) if table.size else None for table in tables),
            cache.keys,
            cache.values,
            *cache.step_inputs(new_tokens),
            *self.norms,
            self.sinks,
        ]


def step(
    tokens: Tokens, cache: PagedCache, new_tokens: Sequence[tuple[int, int]], isa: str, num_threads: int = 2
) -> list[np.ndarray]:
    """Append tokens with the kernel; returns y per sequence and updates the cache."""
    inputs = tokens.inputs(cache, new_tokens)
    outputs = run("PagedAttention", inputs, cache.shape.attributes, isa=isa, num_threads=num_threads)
    cache.append(new_tokens, outputs)
    return np.split(outputs["y"], inputs[5][1:-1])
