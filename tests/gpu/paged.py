"""A paged KV cache with random contents, and attention over it in float64."""

import math
from dataclasses import dataclass

import torch

from tests.gpu.checks import POISON
from tests.gpu.kernels import ModelShape


def _places(page: int, head_dim: int, item_bytes: int) -> torch.Tensor:
    """Offsets [page, head_dim] at which cache.cuh stores the elements of a KV head's part of a block."""
    token, element = torch.arange(page)[:, None], torch.arange(head_dim)[None]
    group, row, piece = token // 8 * 8 * head_dim, token % 8, 16 // item_bytes
    if head_dim * item_bytes % 128 != 0:
        return group + element // piece * 8 * piece + row * piece + element % piece
    run = 128 // item_bytes
    return group + element // run * 8 * run + row * run + (element % run // piece ^ row) * piece + element % piece


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """A view as integers: equal bits compare equal, and torch can write such views by index for any type."""
    return tensor.view({1: torch.int8, 2: torch.int16}[tensor.itemsize])


def packed(tokens: torch.Tensor) -> torch.Tensor:
    """Reorder [blocks, kv_heads, page, head_dim] to the layout of cache.cuh, in the same shape."""
    places = _places(*tokens.shape[2:], tokens.itemsize).to(tokens.device)
    flat = torch.empty_like(tokens).flatten(2)
    bits(flat)[:, :, places.flatten()] = bits(tokens).flatten(2)
    return flat.view(tokens.shape)


def unpacked(cache: torch.Tensor) -> torch.Tensor:
    """The inverse of :func:`packed`."""
    return cache.flatten(2)[:, :, _places(*cache.shape[2:], cache.itemsize).to(cache.device)]


def block_bytes(kv_heads: int, head_dim: int, page: int, dtype: torch.dtype) -> int:
    """Bytes of a block of keys or of values, which lies right before the next one: the cache is of one layer."""
    return kv_heads * head_dim * page * dtype.itemsize


# The scales of keys and of values, by the type of an 8-bit cache.
CACHE_SCALES = {torch.float8_e4m3fn: (2.0**-3, 2.0**-4), torch.int8: (2.0**-5, 2.0**-6)}


def poisoned(*shape: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """A cache without tokens: filled with NaN, or with the largest int8."""
    return torch.full(shape, 127 if dtype == torch.int8 else POISON, device=device).to(dtype)


def in_range(tokens: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Clamp ``tokens`` to the range of ``dtype``."""
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return tokens.clamp(info.min, info.max)


def beginnings(whole: torch.Tensor, *block: int) -> torch.Tensor:
    """Blocks of shape ``block`` at the beginnings of the rows of ``whole``: see :meth:`CacheTypes.apart`."""
    return whole.flatten(1)[:, : math.prod(block)].unflatten(1, block)


@dataclass(frozen=True)
class CacheTypes:
    """The types of a layer's keys and values."""

    keys: torch.dtype
    values: torch.dtype

    @classmethod
    def of(cls, dtype: torch.dtype, in_bytes: torch.dtype | None = None, plain_keys: bool = False) -> "CacheTypes":
        """Types for activations of ``dtype``: values, and keys unless they are plain, are of the type ``in_bytes``."""
        values = in_bytes or dtype
        return cls(dtype if plain_keys else values, values)

    @property
    def both(self) -> tuple[torch.dtype, torch.dtype]:
        """The types of keys and of values."""
        return self.keys, self.values

    @property
    def queries(self) -> torch.dtype:
        """The type of queries."""
        return torch.float16 if self.keys.itemsize == 1 else self.keys

    @property
    def scales(self) -> tuple[float, float]:
        """The scales of keys and of values."""
        return CACHE_SCALES.get(self.keys, (1.0, 1.0))[0], CACHE_SCALES.get(self.values, (1.0, 1.0))[1]

    @property
    def pair_bytes(self) -> int:
        """Bytes of an element of a key and one of a value."""
        return self.keys.itemsize + self.values.itemsize

    def block_bytes(self, kv_heads: int, head_dim: int, page: int) -> int:
        """Bytes from a block of keys to the next, or of values, which may be followed by bytes of nobody."""
        return max(block_bytes(kv_heads, head_dim, page, dtype) for dtype in self.both)

    def poisoned(self, *shape: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Caches of keys and of values of ``shape`` [blocks, kv_heads, page, head_dim], without tokens."""
        keys, values = (self.apart(poisoned(*shape, dtype=dtype, device=device)) for dtype in self.both)
        return keys, values

    def apart(self, blocks: torch.Tensor) -> torch.Tensor:
        """Blocks [blocks, kv_heads, page, head_dim] as far apart as :meth:`block_bytes` says, with poison between."""
        _, kv_heads, page, head_dim = blocks.shape
        length = self.block_bytes(kv_heads, head_dim, page) // blocks.itemsize
        if length == blocks[0].numel():
            return blocks
        whole = poisoned(len(blocks), length, dtype=blocks.dtype, device=str(blocks.device))
        bits(whole)[:, : blocks[0].numel()] = bits(blocks).flatten(1)
        return whole


class PagedCache:
    """Sequences of the given lengths in randomly ordered blocks; slots that hold no token are poisoned."""

    def __init__(self, shape: ModelShape, lengths: list[int], types: CacheTypes, device: str = "cuda") -> None:
        self.shape, self.lengths = shape, lengths
        blocks = [-(-length // shape.page) for length in lengths]
        self.block_tables = torch.full((len(lengths), max(blocks) + 1), -1, dtype=torch.int32)
        order = torch.randperm(sum(blocks) + 2)[: sum(blocks)]
        self.scales = types.scales
        cache = (sum(blocks) + 2, shape.kv_heads, shape.page, shape.head_dim)
        self.keys, self.values = (poisoned(*cache, dtype=dtype, device=device) for dtype in types.both)
        self.unused = next(block for block in range(cache[0]) if block not in order)
        used = 0
        for seq, (count, length) in enumerate(zip(blocks, lengths, strict=True)):
            mine = order[used : used + count]
            used += count
            self.block_tables[seq, :count] = mine.int()
            slots = torch.arange(length)
            for tensor, scale in zip((self.keys, self.values), self.scales, strict=True):
                dtype = tensor.dtype
                tokens = in_range(torch.randn(length, shape.kv_heads, shape.head_dim, device=device) / scale, dtype)
                stored = (tokens.round() if dtype == torch.int8 else tokens).to(dtype)
                bits(tensor)[mine[slots // shape.page].to(device), :, (slots % shape.page).to(device)] = bits(stored)
        self.block_tables = self.block_tables.to(device)
        self.key_cache, self.value_cache = (types.apart(packed(tokens)) for tokens in (self.keys, self.values))

    def give_back(self, past_lens: list[int], window: int, chunked: bool = False) -> torch.Tensor:
        """The block tables of a step, in which entries that no window reaches name a poisoned block.

        ``past_lens`` are the lengths of the sequences' pasts when the step begins.
        """
        tables = self.block_tables.clone()
        for table, past in zip(tables, past_lens, strict=True):
            if window:
                start = past - past % window if chunked else max(past - window + 1, 0)
                table[: start // self.shape.page] = self.unused
        return tables

    def last_slots(self) -> torch.Tensor:
        """The slot of the last token of each sequence."""
        last = torch.tensor(self.lengths, device=self.block_tables.device) - 1
        blocks = self.block_tables.gather(1, (last // self.shape.page)[:, None])[:, 0]
        return (blocks * self.shape.page + last % self.shape.page).int()

    def tokens(self, cache: torch.Tensor, seq: int) -> torch.Tensor:
        """[length, kv_heads, head_dim] of one sequence in float64."""
        length = self.lengths[seq]
        blocks = self.block_tables[seq, : -(-length // self.shape.page)].long()
        return cache[blocks].transpose(1, 2).flatten(0, 1)[:length].double()

    def attend(
        self,
        query: torch.Tensor,
        seq: int,
        past: int,
        window: int,
        softcap: float,
        first_position: int = 0,
        sinks: torch.Tensor | None = None,
        chunked: bool = False,
        temperature: tuple[int, int, float] | None = None,
    ) -> torch.Tensor:
        """Causal attention of ``query`` [new, heads, head_dim] at positions past, past + 1, … of one sequence.

        Queries from ``first_position`` on attend to nothing before it; ``sinks`` [heads] join every query's softmax.
        ``chunked``: windows are chunks of ``window`` positions. ``temperature``: floor_scale, floor_offset, attn_scale.
        """
        shape = self.shape
        group = shape.heads // shape.kv_heads
        caches = zip((self.keys, self.values), self.scales, strict=True)
        keys, values = (self.tokens(cache, seq).repeat_interleave(group, dim=1) * scale for cache, scale in caches)
        at = past + torch.arange(len(query), device=query.device)[:, None]
        scores = torch.einsum("qhd,khd->hqk", query.double(), keys) * shape.head_dim**-0.5
        if temperature is not None:
            floor_scale, floor_offset, attn_scale = temperature
            scores *= 1 + attn_scale * torch.log1p(((at + floor_offset) // floor_scale).double())
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        key_at = torch.arange(len(keys), device=query.device)[None]
        hidden = key_at > at
        if window:
            hidden |= key_at < (at - at % window if chunked else at - window + 1)
        hidden |= key_at < at.clamp(max=first_position)
        scores = scores.masked_fill(hidden, float("-inf"))
        if sinks is not None:
            column = sinks.double()[:, None, None].expand(-1, len(query), 1)
            scores, values = torch.cat([scores, column], -1), torch.cat([values, torch.zeros_like(values[:1])])
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
