"""A paged KV cache with random contents, and attention over it in float64."""

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


class PagedCache:
    """Sequences of the given lengths in randomly ordered blocks; slots that hold no token are poisoned."""

    def __init__(self, shape: ModelShape, lengths: list[int], dtype: torch.dtype, device: str = "cuda") -> None:
        self.shape, self.lengths, self.dtype = shape, lengths, dtype
        blocks = [-(-length // shape.page) for length in lengths]
        self.block_tables = torch.full((len(lengths), max(blocks) + 1), -1, dtype=torch.int32)
        order = torch.randperm(sum(blocks) + 2)[: sum(blocks)]
        self.scales = CACHE_SCALES.get(dtype, (1.0, 1.0))
        cache = (sum(blocks) + 2, shape.kv_heads, shape.page, shape.head_dim)
        self.keys, self.values = (poisoned(*cache, dtype=dtype, device=device) for _ in range(2))
        self.unused = next(block for block in range(cache[0]) if block not in order)
        used = 0
        for seq, (count, length) in enumerate(zip(blocks, lengths, strict=True)):
            mine = order[used : used + count]
            used += count
            self.block_tables[seq, :count] = mine.int()
            slots = torch.arange(length)
            for tensor, scale in zip((self.keys, self.values), self.scales, strict=True):
                tokens = in_range(torch.randn(length, shape.kv_heads, shape.head_dim, device=device) / scale, dtype)
                stored = (tokens.round() if dtype == torch.int8 else tokens).to(dtype)
                bits(tensor)[mine[slots // shape.page].to(device), :, (slots % shape.page).to(device)] = bits(stored)
        self.block_tables = self.block_tables.to(device)
        self.key_cache, self.value_cache = packed(self.keys), packed(self.values)

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
