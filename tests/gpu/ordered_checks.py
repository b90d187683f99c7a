"""Checks that all kernels of a product that a deterministic engine may choose give a row the same bits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from tests.gpu.byte_checks import LEAST, random_rows, rounded, scales_of
from tests.gpu.byte_checks import random_weight as random_bytes
from tests.gpu.checks import POISON
from tests.gpu.device import GPU, Machine
from tests.gpu.launches import H200, Prepared
from tests.gpu.memory import NAMES, Memory
from tests.gpu.paged import bits, block_bytes, poisoned, unpacked
from tests.gpu.weights import Form, random_weight
from trtllm_lite.plugins.cuda.few_rows import FewRows, GemvConfig
from trtllm_lite.plugins.cuda.row_scales import RowScales
from trtllm_lite.plugins.cuda.split_k import SplitKConfig
from trtllm_lite.plugins.cuda.tiles import TileConfig, Tiling
from trtllm_lite.plugins.gated_linear import cuda as gated_linear
from trtllm_lite.plugins.launch import Buffer, Device, Extent, Launch, WeightBuffers, symbol
from trtllm_lite.plugins.linear import cuda as linear
from trtllm_lite.plugins.paged_attention.launches import Cache, Heads
from trtllm_lite.plugins.paged_attention.new_tokens import NewTokens

PAGE, HEAD_DIM = 32, 64
INT8 = torch.int8


@dataclass(frozen=True)
class Way:
    """A kernel for up to ``capacity`` rows; one for a few rows runs on ``blocks`` blocks if that is given."""

    config: TileConfig | GemvConfig | SplitKConfig
    capacity: int
    blocks: int | None = None
    device: Device = H200


@dataclass(frozen=True)
class Case:
    """A product of 16-bit rows by a weight of a Form, or of int8 rows by int8: linear, gated, or of ``heads``.

    A product of heads has as many key/value heads as ``kv_heads``, and RoPE. ``added``: a residual, or what adapters
    add to a gated product.
    """

    kind: Form | torch.dtype
    out: int
    in_features: int
    gated: bool = False
    kv_heads: int = 0
    bias: bool = False
    added: bool = False
    activation: str = "none"
    float_out: bool = False

    @property
    def heads(self) -> int:
        """The number of query heads."""
        return self.out // HEAD_DIM - 2 * self.kv_heads


class _Operands:
    """Random operands of a case for ``rows`` rows, the same for all kernels."""

    def __init__(self, case: Case, rows: int, dtype: torch.dtype, device: str) -> None:
        self.case, self.rows, self.dtype, self.device = case, rows, dtype, device
        shape = (*((2,) if case.gated else ()), case.out, case.in_features)
        self.x = random_rows(rows, case.in_features, dtype, device)
        if isinstance(case.kind, Form):
            self.blocks = random_weight(case.kind, *shape, device=device)
        else:
            self.matrix = random_bytes(case.kind, *shape, device=device)
            self.scales = scales_of(self.x, None, case.kind)
            self.quantized = rounded(self.x, self.scales, case.kind)
        self.bias = torch.randn(case.out, device=device) if case.bias else None
        self.added = torch.randn(rows, (1 + case.gated) * case.out, device=device).to(dtype) if case.added else None
        self.angles = torch.rand(rows, HEAD_DIM // 2, device=device) * 6.3
        self.slots = torch.randperm(-(-rows // PAGE) * PAGE, device=device).int()

    def padded(self, tensor: torch.Tensor, capacity: int) -> torch.Tensor:
        """As many of the first rows as a kernel takes, and garbage where there are fewer."""
        rows = tensor[:capacity]
        if len(rows) == capacity:
            return rows.contiguous()
        garbage = torch.full((capacity - len(rows), *rows.shape[1:]), 3, device=self.device).to(tensor.dtype)
        return torch.cat([rows, garbage])

    def run(self, way: Way, machine: Machine) -> list[torch.Tensor]:
        """The results of ``way`` for as many of the rows as it takes."""
        rows = min(self.rows, way.capacity)
        memory = Memory(self.blocks.tensors) if isinstance(self.case.kind, Form) else Memory()
        launch, results = self._launch(way, memory, rows)
        if way.blocks is not None:
            launch = replace(launch, grid=(Extent(way.blocks), *launch.grid[1:]))
        Prepared(launch, memory.tensors, {"rows": rows, "num_tokens": way.capacity}, machine)()
        of_rows, *caches = results
        return [of_rows[:rows], *(self._stored(cache, rows) for cache in caches)]

    def _stored(self, cache: torch.Tensor, rows: int) -> torch.Tensor:
        """The keys or values [rows, kv_heads, head_dim] of the rows."""
        slots = self.slots[:rows].long()
        return bits(unpacked(cache))[slots // PAGE, :, slots % PAGE].view(cache.dtype)

    def _launch(self, way: Way, memory: Memory, rows: int) -> tuple[Launch, list[torch.Tensor]]:
        case, more = self.case, {"bias": memory.optional("bias", self.bias)}
        how, operands = self._how(way, memory)
        if case.kv_heads:
            tokens, read = self._tokens(memory, way.capacity, rows)
            if isinstance(how, FewRows):
                return tokens.few_rows(*operands, how, **more), read
            how = replace(how, chunk=tokens.chunk)
            return tokens.tiled(*operands, how, **more), read
        y = torch.full((way.capacity, case.out), POISON, device=self.device)
        y = y if case.float_out else y.to(self.dtype)
        added = None if self.added is None else memory("added", self.padded(self.added, way.capacity))
        operands = (memory("y", y), *operands, how)
        if not case.gated:
            compute = linear.stream if isinstance(how, FewRows) else linear.tiled
            return compute(*operands, activation=case.activation, residual=added, **more), [y]
        compute = gated_linear.stream if isinstance(how, FewRows) else gated_linear.tiled
        return compute(*operands, activation=case.activation, added=added), [y]

    def _how(self, way: Way, memory: Memory) -> tuple[FewRows | Tiling, tuple[Buffer, WeightBuffers, Extent]]:
        few, dtype = not isinstance(way.config, TileConfig), NAMES[self.dtype]
        x, scales = self.padded(self.x, way.capacity), None
        if isinstance(self.case.kind, Form):
            weight = self.blocks.buffers
        else:
            weight, name = self.matrix.buffers(memory), NAMES[self.case.kind]
            scales = RowScales(name, LEAST, True)
            if not few:
                x = self.padded(self.quantized, way.capacity)
                scales = replace(scales, buffer=memory("row_scales", self.padded(self.scales.flatten(), way.capacity)))
        operands = (memory("x", x), weight, symbol("rows"))
        if isinstance(way.config, TileConfig):
            return Tiling(dtype, H200, way.config, way.capacity, scales, ordered=True), operands
        return FewRows(way.capacity, dtype, way.device, way.config, scales, ordered=True), operands

    def _tokens(self, memory: Memory, capacity: int, rows: int) -> tuple[NewTokens, list[torch.Tensor]]:
        """The places of queries, keys and values, and what is stored there, row by row."""
        case, pages = self.case, -(-self.rows // PAGE)
        q = torch.full((capacity, case.heads, HEAD_DIM), POISON, device=self.device, dtype=self.dtype)
        extents = (pages, case.kv_heads, PAGE, HEAD_DIM)
        caches = [poisoned(*extents, dtype=self.dtype, device=self.device) for _ in range(2)]
        slots = torch.full((capacity,), -1, device=self.device, dtype=torch.int32)
        slots[:rows] = self.slots[:rows]
        tables = tuple(self.padded(table, capacity) for table in (self.angles.cos(), self.angles.sin()))
        cos, sin = (memory(name, table) for name, table in zip(("cos", "sin"), tables, strict=True))
        block = (case.kv_heads, HEAD_DIM, PAGE)
        name = NAMES[self.dtype]
        heads = Heads(case.heads, *block, name, name, block_bytes(*block, self.dtype), HEAD_DIM)
        keys, values = (memory(name, cache) for name, cache in zip(("keys", "values"), caches, strict=True))
        unread = Buffer("unread", "int32", (1,))
        cache = Cache(keys, values, unread, unread, unread, memory("slots", slots), 0)
        return NewTokens(memory("q", q), cache, (cos, sin), heads), [q, *caches]


def check_same_bits(
    case: Case, ways: Sequence[Way], rows: int, dtype: torch.dtype = torch.bfloat16, machine: Machine = GPU
) -> None:
    """Check that all ``ways`` give rows the bits that the first gives, whose capacity is at least ``rows``."""
    operands = _Operands(case, rows, dtype, machine.device)
    first, *others = ways
    expected = [result.clone() for result in operands.run(first, machine)]
    assert torch.isfinite(expected[0].float()).all()
    for way in others:
        for found, wanted in zip(operands.run(way, machine), expected, strict=True):
            assert torch.equal(_words(found), _words(wanted[: len(found)])), f"{way} differs from {first}"


def _words(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)
