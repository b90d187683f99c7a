"""Compares tiled and clustered QKV products, with RoPE and the write of the paged cache, with float64."""

from dataclasses import dataclass, replace

import torch

from tests.gpu.attention_checks import assert_stored, rotated
from tests.gpu.byte_checks import LEAST, random_rows, rounded, scales_of
from tests.gpu.byte_checks import random_weight as random_bytes
from tests.gpu.checks import POISON, assert_close
from tests.gpu.device import GPU, Machine
from tests.gpu.kernels import ModelShape
from tests.gpu.launches import H200, Prepared
from tests.gpu.memory import NAMES, Memory
from tests.gpu.paged import CacheTypes, beginnings
from tests.gpu.weights import Form, random_weight
from trtllm_lite.plugins.cuda.few_rows import FewRows
from trtllm_lite.plugins.cuda.row_scales import RowScales
from trtllm_lite.plugins.cuda.split_k import SplitKConfig
from trtllm_lite.plugins.cuda.tiles import TileConfig, Tiling
from trtllm_lite.plugins.launch import Buffer, Extent, WeightBuffers, symbol
from trtllm_lite.plugins.paged_attention.launches import Cache, Heads
from trtllm_lite.plugins.paged_attention.new_tokens import NewTokens

WeightKind = torch.dtype | Form  # 16-bit elements, or the form of weights for 8-bit rows or for dequantization


@dataclass(frozen=True)
class _Rows:
    """``rows`` rows of ``features`` elements of ``dtype``, followed by garbage up to ``capacity``."""

    rows: int
    capacity: int
    features: int
    dtype: torch.dtype
    device: str

    def random(self) -> torch.Tensor:
        x = torch.full((self.capacity, self.features), POISON, device=self.device, dtype=self.dtype)
        x[: self.rows] = torch.randn(self.rows, self.features, device=self.device).to(self.dtype)
        return x


@dataclass(frozen=True)
class _Product:
    """A product of ``x`` and ``weight`` in the memory of a launch, and its float64 value."""

    x: Buffer
    weight: WeightBuffers
    expected: torch.Tensor
    x_scales: RowScales | None = None


def _product(memory: Memory, kind: WeightKind, out: int, rows: _Rows) -> _Product:
    if isinstance(kind, torch.dtype) and kind.itemsize == 1:
        return _product_of_bytes(memory, kind, out, rows)
    x = rows.random()
    if isinstance(kind, Form):
        weight = random_weight(kind, out, rows.features, device=rows.device)
        memory.tensors.update(weight.tensors)
        return _Product(memory("x", x), weight.buffers, x[: rows.rows].double() @ weight.meant.T)
    matrix = (torch.randn(out, rows.features, device=rows.device) * rows.features**-0.5).to(rows.dtype)
    expected = x[: rows.rows].double() @ matrix.double().T
    return _Product(memory("x", x), WeightBuffers(memory("weight", matrix)), expected)


def _product_of_bytes(memory: Memory, kind: torch.dtype, out: int, rows: _Rows) -> _Product:
    """A product of 8-bit rows and weights; each row has its own scale."""
    weight = random_bytes(kind, out, rows.features, device=rows.device)
    source = random_rows(rows.capacity, rows.features, rows.dtype, rows.device)
    scales = scales_of(source, None, kind)
    x = rounded(source, scales, kind)
    expected = (x.double() * scales.double())[: rows.rows] @ weight.meant.T
    x_scales = RowScales(NAMES[kind], LEAST, True, memory("row_scales", scales.flatten()))
    return _Product(memory("x", x), weight.buffers(memory), expected, x_scales)


def check_qkv(
    shape: ModelShape,
    config: TileConfig | SplitKConfig,
    rows: int,
    capacity: int,
    dtype: torch.dtype,
    kind: WeightKind,
    *,
    rotary_dim: int | None = None,
    cache_dtype: torch.dtype | None = None,
    plain_keys: bool = False,
    machine: Machine = GPU,
) -> None:
    """Check queries, and random slots of a poisoned cache, for ``rows`` of ``capacity`` rows, by tiles or one cluster.

    ``cache_dtype``: type of an 8-bit cache, if ``plain_keys`` of values alone. ``rotary_dim`` elements of a head are
    rotated (default: all). There is a bias if the shape has one.
    """
    device, num_blocks, memory = machine.device, -(-rows // shape.page) + 1, Memory()
    rotated_dim = shape.head_dim if rotary_dim is None else rotary_dim
    angles = torch.rand(capacity, rotated_dim // 2, device=device) * 6.3
    slots = torch.full((2, capacity), -1, device=device, dtype=torch.int32)  # of another cache group, and of this one
    slots[1, :rows] = torch.randperm(num_blocks * shape.page, device=device)[:rows].int()
    types = CacheTypes.of(dtype, cache_dtype, plain_keys)
    q = torch.full((capacity, shape.heads, shape.head_dim), POISON, device=device, dtype=types.queries)
    caches = types.poisoned(num_blocks, shape.kv_heads, shape.page, shape.head_dim, device=device)
    cos, sin = angles.cos(), angles.sin()

    product = _product(memory, kind, shape.qkv_features, _Rows(rows, capacity, shape.hidden, dtype, device))
    bias = torch.randn(shape.qkv_features, device=device) if shape.qkv_bias else None
    tables = (memory("cos", cos), memory("sin", sin)) if rotated_dim else (None, None)
    block = (shape.kv_heads, shape.head_dim, shape.page)
    names, stride = (NAMES[dtype], NAMES[types.values]), types.block_bytes(*block)
    heads = Heads(shape.heads, *block, *names, stride, rotated_dim, key_dtype=NAMES[types.keys])
    keys, values = (memory(name, cache) for name, cache in zip(("keys", "values"), caches, strict=True))
    unread = Buffer("unread", "int32", (1,))
    cache = Cache(keys, values, unread, unread, unread, memory("slots", slots), 1, *types.scales)
    tokens = NewTokens(memory("q", q), cache, tables, heads)
    operands, more = (product.x, product.weight, symbol("rows")), {"bias": memory.optional("bias", bias)}
    if isinstance(config, SplitKConfig):
        few_rows = FewRows(capacity, NAMES[dtype], H200, config)
        blocks = (Extent(config.splits), Extent(1), Extent(1))
        launch = replace(tokens.few_rows(*operands, few_rows, **more), grid=blocks)
    else:
        tiling = Tiling(NAMES[dtype], H200, config, capacity, product.x_scales, tokens.chunk)
        launch = tokens.tiled(*operands, tiling, **more)
    Prepared(launch, memory.tensors, {"rows": rows, "num_tokens": capacity}, machine)()

    expected = product.expected if bias is None else product.expected + bias.double()
    queries, *written = rotated(shape, expected, cos[:rows], sin[:rows])
    coarsest = _coarsest(kind, dtype if isinstance(kind, Form) else types.queries)
    assert_close(q[:rows], queries, coarsest)
    assert torch.isnan(q[rows:]).all(), "rows past the last one were written"
    for cache_of_kind, reference, scale in zip(caches, written, types.scales, strict=True):
        stored = beginnings(cache_of_kind, shape.kv_heads, shape.page, shape.head_dim)
        assert_stored(stored, slots[1, :rows], reference, scale, coarsest)


def _coarsest(kind: WeightKind, dtype: torch.dtype) -> torch.dtype | None:
    """The key of the product's entry in ``checks.TOLERANCES``."""
    if isinstance(kind, Form):
        return torch.uint8 if dtype == torch.bfloat16 or kind.number == "bfloat16" else dtype
    return kind if kind == torch.float8_e4m3fn else dtype
