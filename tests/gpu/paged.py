"""A paged KV cache with random contents, and attention over it in float64."""

import torch

from tests.gpu.checks import POISON
from tests.gpu.kernels import ModelShape


def _places(page: int, head_dim: int, item_bytes: int) -> torch.Tensor:
    """[page, head_dim]: where cache.cuh puts each element of a KV head's part of a block."""
    token, element = torch.arange(page)[:, None], torch.arange(head_dim)[None]
    group, row, piece = token // 8 * 8 * head_dim, token % 8, 16 // item_bytes
    if head_dim * item_bytes % 128 != 0:
        return group + element // piece * 8 * piece + row * piece + element % piece
    run = 128 // item_bytes
    return group + element // run * 8 * run + row * run + (element % run // piece ^ row) * piece + element % piece


def packed(tokens: torch.Tensor) -> torch.Tensor:
    """[blocks, kv_heads, page, head_dim] as cache.cuh lays it out, in the same shape."""
    places = _places(*tokens.shape[2:], tokens.itemsize).to(tokens.device)
    flat = torch.empty_like(tokens).flatten(2)
    flat[:, :, places.flatten()] = tokens.flatten(2)
    return flat.view(tokens.shape)


def unpacked(cache: torch.Tensor) -> torch.Tensor:
    """The inverse of :func:`packed`."""
    return cache.flatten(2)[:, :, _places(*cache.shape[2:], cache.itemsize).to(cache.device)]


class PagedCache:
    """Sequences of the given lengths in randomly ordered blocks; slots that hold no token are poisoned."""

    def __init__(self, shape: ModelShape, lengths: list[int], dtype: torch.dtype, device: str = "cuda") -> None:
        self.shape, self.lengths, self.dtype = shape, lengths, dtype
        blocks = [-(-length // shape.page) for length in lengths]
        self.block_tables = torch.full((len(lengths), max(blocks) + 1), -1, dtype=torch.int32)
        order = torch.randperm(sum(blocks) + 2)[: sum(blocks)]
        cache = (sum(blocks) + 2, shape.kv_heads, shape.page, shape.head_dim)
        self.keys, self.values = (torch.full(cache, POISON, device=device, dtype=dtype) for _ in range(2))
        used = 0
        for seq, (count, length) in enumerate(zip(blocks, lengths, strict=True)):
            mine = order[used : used + count]
            used += count
            self.block_tables[seq, :count] = mine.int()
            slots = torch.arange(length)
            for tensor in (self.keys, self.values):
                tokens = torch.randn(length, shape.kv_heads, shape.head_dim, device=device).to(dtype)
                tensor[mine[slots // shape.page].to(device), :, (slots % shape.page).to(device)] = tokens
        self.block_tables = self.block_tables.to(device)
        self.key_cache, self.value_cache = packed(self.keys), packed(self.values)

    def give_back(self, past_lens: list[int], window: int) -> torch.Tensor:
        """Block tables of a step in which entries that no window reaches name a block full of poison, or any other.

        ``past_lens`` of the sequences when the step begins.
        """
        tables = self.block_tables.clone()
        poisoned = int(self.keys.flatten(1).isnan().all(1).nonzero()[0])
        for table, past in zip(tables, past_lens, strict=True):
            if window:
                table[: max(past - window + 1, 0) // self.shape.page] = poisoned
        return tables

    def tokens(self, cache: torch.Tensor, seq: int) -> torch.Tensor:
        """[length, kv_heads, head_dim] of one sequence in float64."""
        length = self.lengths[seq]
        blocks = self.block_tables[seq, : -(-length // self.shape.page)].long()
        return cache[blocks].transpose(1, 2).flatten(0, 1)[:length].double()

    def attend(self, query: torch.Tensor, seq: int, past: int, window: int, softcap: float) -> torch.Tensor:
        """Causal attention of ``query`` [new, heads, head_dim] at positions past, past + 1, … of one sequence."""
        shape = self.shape
        group = shape.heads // shape.kv_heads
        keys = self.tokens(self.keys, seq).repeat_interleave(group, dim=1)
        values = self.tokens(self.values, seq).repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", query.double(), keys) * shape.head_dim**-0.5
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        at = past + torch.arange(len(query), device=query.device)[:, None]
        key_at = torch.arange(len(keys), device=query.device)[None]
        hidden = (key_at > at) | ((key_at <= at - window) if window else False)
        return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), values)
