"""Kernels of latent attention against the operator's reference, on a GPU or emulated."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from tests.gpu.checks import POISON, assert_close
from tests.gpu.device import Machine
from tests.gpu.launches import H200, Prepared
from tests.gpu.memory import NAMES, Memory
from tests.gpu.paged import packed, poisoned, unpacked
from trtllm_lite.plugins.latent_attention import launches
from trtllm_lite.plugins.latent_attention.launches import LatentHeads
from trtllm_lite.plugins.latent_attention.reference import reference
from trtllm_lite.plugins.launch import Buffer, Extent, Launch, Slice
from trtllm_lite.plugins.paged_attention.launches import Cache

EPSILON = 1e-6
GROUPS, GROUP = 2, 1  # number of cache groups, and the layer's group


@dataclass(frozen=True)
class Layer:
    """The extents of a layer."""

    heads: int
    latent_dim: int = 512
    page: int = 32
    plain_dim: int = 128
    value_dim: int = 128
    rotary_dim: int = 64

    def extents(self, dtype: torch.dtype) -> LatentHeads:
        sizes = (self.heads, self.plain_dim, self.rotary_dim, self.value_dim, self.latent_dim, self.page)
        return LatentHeads(*sizes, self.block_bytes, NAMES[dtype])

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of the test's cache, which holds the layer's latents and then its keys."""
        return self.page * (self.latent_dim + self.rotary_dim) * 2

    @property
    def scale(self) -> float:
        return (self.plain_dim + self.rotary_dim) ** -0.5


class Step:
    """Random rows of a step after random pasts; ``batch``: past and new tokens of each sequence.

    Slots of the caches that hold no token are poisoned, and blocks lie in random order.
    """

    def __init__(self, layer: Layer, batch: list[tuple[int, int]], dtype: torch.dtype, device: str) -> None:
        self.layer, self.batch, self.dtype, self.device = layer, batch, dtype, device
        rows, page = sum(new for _, new in batch), layer.page
        pages = [-(-(past + new) // page) for past, new in batch]
        order = torch.randperm(sum(pages) + 2)[: sum(pages)].int()
        tables = torch.full((len(batch), GROUPS, max(pages) + 1), -1, dtype=torch.int32)
        for seq, mine in enumerate(order.split(pages)):
            tables[seq, GROUP, : len(mine)] = mine
        self.num_blocks = sum(pages) + 2
        ends = torch.tensor([0, *(new for _, new in batch)]).cumsum(0)
        positions = torch.cat([past + torch.arange(new) for past, new in batch])
        of_row = torch.repeat_interleave(torch.arange(len(batch)), torch.tensor([new for _, new in batch]))
        self.slots = tables[of_row, GROUP, positions // page] * page + positions % page
        self.tables, self.cu_seqlens = tables, ends.int()
        self.past_lens = torch.tensor([past for past, _ in batch], dtype=torch.int32)
        self.query = torch.randn(rows, layer.heads * (layer.plain_dim + layer.rotary_dim)).to(dtype)
        self.latent = torch.randn(rows, layer.latent_dim + layer.rotary_dim).to(dtype)
        angles = positions[:, None] * 100.0 ** -torch.linspace(0, 1, layer.rotary_dim // 2)
        self.cos, self.sin = angles.cos(), angles.sin()
        self.norm = 0.5 + torch.rand(layer.latent_dim)
        depths = (layer.plain_dim, layer.value_dim)
        weights = (torch.randn(layer.heads, depth, layer.latent_dim) for depth in depths)
        self.key_up, self.value_up = (weight.div(layer.latent_dim**0.5).to(dtype) for weight in weights)

    @property
    def dims(self) -> tuple[int, int]:
        return self.layer.rotary_dim, self.layer.latent_dim

    @cached_property
    def caches(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The caches of keys and of latents, [blocks, 1, page, dim]."""
        page, dtype = self.layer.page, self.dtype
        keys, latents = (poisoned(self.num_blocks, 1, page, dim, dtype=dtype, device="cpu") for dim in self.dims)
        for table, (past, _) in zip(self.tables[:, GROUP].long(), self.batch, strict=True):
            at = torch.arange(past)
            for cache in (keys, latents):
                cache[table[at // page], 0, at % page] = torch.randn(past, cache.shape[-1]).to(dtype)
        return keys, latents

    def referred(self) -> tuple[torch.Tensor, ...]:
        """``y`` and both caches in float64, by the operator's reference, which is slow."""
        rows = (self.query, self.latent, self.norm, self.cos, self.sin, self.key_up, self.value_up)
        arrays = [tensor.double().numpy() for tensor in (*rows, *self.caches)]
        places = (self.cu_seqlens.numpy(), self.past_lens.numpy(), self.tables.flatten(0, 1).numpy())
        attributes = {"scale": self.layer.scale, "norm_epsilon": EPSILON, "cache_group": GROUP}
        y, *caches = (torch.from_numpy(np.asarray(array)) for array in reference((*arrays, *places), attributes))
        return y, *caches

    def expected(self) -> tuple[torch.Tensor, ...]:
        """The results of ``referred``, computed for all heads and tokens of a sequence at a time."""
        layer, at = self.layer, {"device": self.device, "dtype": torch.float64}
        latent, shared = self.latent.to(**at).split([layer.latent_dim, layer.rotary_dim], 1)
        inverse = torch.rsqrt(latent.square().mean(1, keepdim=True) + EPSILON)
        parts = [layer.heads * layer.plain_dim, layer.heads * layer.rotary_dim]
        plain, rotated = (part.unflatten(1, (layer.heads, -1)) for part in self.query.to(**at).split(parts, 1))
        rotated, shared = self._rotated(rotated), self._rotated(shared[:, None])[:, 0]
        keys, latents = (cache.to(**at).flatten(0, 2) for cache in self.caches)
        slots = self.slots.to(self.device)
        keys[slots], latents[slots] = shared, latent * inverse * self.norm.to(**at)
        y = torch.empty(len(plain), layer.heads, layer.value_dim, **at)
        for seq, (past, new) in enumerate(self.batch):
            rows = slice(int(self.cu_seqlens[seq]), int(self.cu_seqlens[seq + 1]))
            at_all = torch.arange(past + new)
            slots = self.tables[seq, GROUP, at_all // layer.page] * layer.page + at_all % layer.page
            seen, seen_keys = latents[slots.to(self.device)], keys[slots.to(self.device)]
            scores = plain[rows].transpose(0, 1) @ (self.key_up.to(**at) @ seen.T)
            scores += rotated[rows].transpose(0, 1) @ seen_keys.T
            hidden = at_all > past + torch.arange(new)[:, None]
            weights = scores.mul(layer.scale).masked_fill(hidden.to(self.device), -torch.inf).softmax(-1)
            y[rows] = (weights @ (seen @ self.value_up.to(**at).transpose(1, 2))).transpose(0, 1)
        caches = (flat.view(cache.shape).cpu() for flat, cache in zip((keys, latents), self.caches, strict=True))
        return y.flatten(1).cpu(), *caches

    def _rotated(self, parts: torch.Tensor) -> torch.Tensor:
        """RoPE of [tokens, heads, rotary_dim]."""
        cos, sin = (table[:, None].to(parts) for table in (self.cos, self.sin))
        low, high = parts.chunk(2, -1)
        return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


class Attention:
    """The launches of a layer's step by name, and their tensors."""

    def __init__(self, step: Step, machine: Machine, max_rows: int, *, split: bool) -> None:
        """Prepare the launches; ``split`` selects the kernel for sequences of few new tokens each."""
        self.step, self.machine, self.memory = step, machine, Memory()
        layer, rows, dtype = step.layer, len(step.query), step.dtype
        heads = layer.extents(dtype)
        keys, latents = (packed(cache).flatten(1) for cache in step.caches)
        self.blocks = self._new("blocks", torch.cat([latents, keys], 1))
        self.sizes = latents.shape[1], keys.shape[1]
        of_keys = Slice(self.blocks, Extent(latents[0].nbytes))
        slots = torch.full((GROUPS, rows), -(2**30), dtype=torch.int32)
        slots[GROUP] = step.slots
        places = {name: self._new(name, getattr(step, name)) for name in ("cu_seqlens", "past_lens")}
        tables, of_slots = self._new("tables", step.tables.flatten(0, 1)), self._new("slots", slots)
        cache = Cache(of_keys, self.blocks, places["cu_seqlens"], places["past_lens"], tables, of_slots, GROUP)

        def room(name: str, *shape: int) -> Buffer:
            return self._new(name, torch.full(shape, POISON).to(dtype))

        absorbed = room("absorbed", rows, layer.heads, sum(step.dims))
        mean = room("mean", rows, layer.heads, layer.latent_dim)
        self.y = room("y", rows, layer.heads * layer.value_dim)
        names = ("query", "latent", "norm", "cos", "sin", "key_up", "value_up")
        given = {name: self._new(name, getattr(step, name)) for name in names}
        tables_of_rope = given["cos"], given["sin"]
        norm, inputs = (given["norm"], EPSILON), (given["query"], given["latent"], given["key_up"])
        of_rows, scale = (mean, absorbed, cache, heads, H200), layer.scale
        if split:
            of_seqs = {"max_seqs": len(step.batch), "num_new_tokens": max(new for _, new in step.batch)}
            attend = launches.decode(*of_rows, scale, **of_seqs)
        else:
            attend = launches.prefill(*of_rows, scale)
        assert attend is not None
        self.launches = {
            "absorb": launches.absorb(absorbed, *inputs, norm, tables_of_rope, cache, heads, max_rows),
            "attend": attend,
            "values": launches.make_values(self.y, mean, given["value_up"], heads, max_rows),
        }
        if split:
            self._add_shared(attend, layer)

    def _new(self, name: str, tensor: torch.Tensor) -> Buffer:
        return self.memory(name, tensor.to(self.machine.device).contiguous())

    def _add_shared(self, attend: Launch, layer: Layer) -> None:
        """Add the memory through which blocks share rows."""
        partials, arrivals = (buffer for buffer in attend.arguments[-2:] if isinstance(buffer, Buffer))
        row, count = partials.shape[1], len(self.step.query) * -(-layer.heads // 64)
        assert isinstance(row, int)
        at = {"device": self.machine.device}
        self.memory.tensors[partials] = torch.full((self.machine.num_sms, row), POISON, **at)
        self.arrivals = self.memory.tensors[arrivals] = torch.zeros(count, dtype=torch.int32, **at)

    def prepared(self, name: str) -> Prepared:
        rows, seqs = len(self.step.query), len(self.step.batch)
        symbols = {"num_tokens": rows, "max_blocks_per_seq": self.step.tables.shape[-1], "num_decode_seqs": 0}
        if name == "attend" and hasattr(self, "arrivals"):
            symbols["num_decode_seqs"] = seqs
        symbols |= {"num_prefill_seqs": seqs, "num_prefill_tokens": rows, "num_seqs": seqs}
        return Prepared(self.launches[name], self.memory.tensors, symbols, self.machine)

    def caches(self) -> list[torch.Tensor]:
        """The caches of keys and of latents, [blocks, 1, page, dim]."""
        blocks, page = self.memory.tensors[self.blocks].cpu(), self.step.layer.page
        latents, keys = (part.reshape(len(blocks), 1, page, -1) for part in blocks.split(self.sizes, 1))
        return [unpacked(keys), unpacked(latents)]

    def run(self) -> torch.Tensor:
        """Run all launches; returns y."""
        for name in self.launches:
            self.prepared(name)()
        return self.memory.tensors[self.y].cpu()


def check_latents(
    layer: Layer,
    batch: list[tuple[int, int]],
    dtype: torch.dtype,
    *,
    split: bool,
    max_rows: int | None = None,
    machine: Machine,
) -> None:
    """Check that two launches give the same bits; the second finds counters as the first left them.

    Then a new token of the first sequence is NaN, and the results of all other sequences stay the same.
    """
    step = Step(layer, batch, dtype, machine.device)
    attention = Attention(step, machine, max_rows or len(step.query), split=split)
    found, again = attention.run(), attention.run()
    y, keys, latents = step.expected()
    assert_close(found, y, by_row=True)
    assert torch.equal(found, again)
    for stored, expected in zip(attention.caches(), (keys, latents), strict=True):
        assert torch.equal(torch.isnan(stored), torch.isnan(expected)), "other slots were written"
        assert_close(stored[~torch.isnan(stored)], expected[~torch.isnan(expected)])
    if split:
        assert not attention.arrivals.any()
    attention.memory.tensors[next(b for b in attention.memory.tensors if b.name == "latent")][0] = POISON
    changed, others = attention.run(), batch[0][1]
    assert torch.isnan(changed[0]).all(), "a row of NaN is lost"
    assert torch.equal(changed[others:], found[others:])


def check_rows_alone(layer: Layer, past: int, new: int, dtype: torch.dtype, *, machine: Machine) -> None:
    """Check that new tokens of a sequence get the same bits together and one after the other."""
    whole = Step(layer, [(past, new)], dtype, machine.device)
    together = Attention(whole, machine, 64, split=False)
    expected = together.run()
    for row in range(new):
        part = _rows_of(whole, together, past, row)
        found = Attention(part, machine, 1, split=False).run()
        assert torch.equal(found[0], expected[row])


def _rows_of(whole: Step, done: Attention, past: int, row: int) -> Step:
    """The step of one row, with all rows before it in the caches."""
    part = object.__new__(Step)
    part.__dict__.update(whole.__dict__)
    part.batch = [(past + row, 1)]
    for name in ("query", "latent", "cos", "sin", "slots"):
        setattr(part, name, getattr(whole, name)[row : row + 1])
    part.cu_seqlens, part.past_lens = torch.tensor([0, 1]).int(), torch.tensor([past + row]).int()
    keys, latents = done.caches()
    part.caches = keys, latents
    return part
