"""Times QKV products of Llama 3.1 8B that rotate and write the cache, against products with rope_cache after them.

Weights rotate, so that none is cached.

python -m tests.gpu.bench_qkv [--rows 64,256] [--kinds bfloat16,float8_e4m3fn] [--configs 3]
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import torch

from tests.gpu.device import GPU, Machine
from tests.gpu.kernels import ModelShape
from tests.gpu.launches import H200, Prepared
from tests.gpu.memory import NAMES, Memory
from tests.gpu.paged import block_bytes
from tests.gpu.timing import timed
from trtllm_lite.plugins.cuda.row_scales import RowScales
from trtllm_lite.plugins.cuda.tiles import TileConfig, Tiling, tile_configs
from trtllm_lite.plugins.cuda.weight_form import weight_form
from trtllm_lite.plugins.launch import Buffer, Launch, WeightBuffers, symbol
from trtllm_lite.plugins.linear import cuda as linear
from trtllm_lite.plugins.paged_attention.launches import Cache, Heads
from trtllm_lite.plugins.paged_attention.new_tokens import NewTokens

KINDS = (torch.bfloat16, torch.float8_e4m3fn)
SHAPE = ModelShape(4096, 14336, 32, 8, 128, 128256, page=32)
COLD_BYTES = 400 << 20


@dataclass
class Products:
    """Products of ``rows`` rows with more weights than the L2 cache holds; 8-bit rows have a scale each."""

    kind: torch.dtype
    rows: int
    shape: ModelShape = SHAPE
    cold_bytes: int = COLD_BYTES
    machine: Machine = GPU

    def __post_init__(self) -> None:
        shape, rows, device, memory = self.shape, self.rows, self.machine.device, Memory()
        self.memory, self.is_bytes = memory, self.kind.itemsize == 1
        name = NAMES[self.kind]
        self.form = weight_form(name, name if self.is_bytes else None)
        copies = max(2, self.cold_bytes // (shape.qkv_features * shape.hidden * self.kind.itemsize))
        self.weights = [self._weight() for _ in range(copies)]
        self.x = memory("x", torch.randn(rows, shape.hidden, device=device).to(self.kind))
        ones = memory("x_scales", torch.ones(rows, device=device))
        self.x_scales = RowScales(name, 1e-30, True, ones) if self.is_bytes else None
        q = torch.zeros(rows, shape.heads, shape.head_dim, device=device).to(
            torch.float16 if self.is_bytes else self.kind
        )
        blocks = (-(-rows // shape.page), shape.kv_heads, shape.page, shape.head_dim)
        keys, values = (memory(name, torch.zeros(blocks, device=device).to(self.kind)) for name in ("keys", "values"))
        slots = memory("slots", torch.arange(rows, device=device, dtype=torch.int32)[None])
        angles = torch.rand(rows, shape.head_dim // 2, device=device)
        unread = Buffer("unread", "int32", (1,))
        block = (shape.kv_heads, shape.head_dim, shape.page)
        stored = (name, block_bytes(*block, self.kind))
        heads = (shape.heads, *block, "bfloat16", *stored, shape.head_dim)
        cache = Cache(keys, values, unread, unread, unread, slots, 0)
        tables = (memory("cos", angles.cos()), memory("sin", angles.sin()))
        self.tokens = NewTokens(memory("q", q), cache, tables, Heads(*heads))
        self.qkv = memory("qkv", torch.zeros(rows, shape.qkv_features, device=device, dtype=torch.bfloat16))

    def _weight(self) -> WeightBuffers:
        shape, device = self.shape, self.machine.device
        values = torch.randn(shape.qkv_features, shape.hidden, device=device).mul_(shape.hidden**-0.5).to(self.kind)
        if not self.is_bytes:
            return WeightBuffers(self.memory("weight", values))
        scale = self.memory("weight_scale", torch.ones(shape.qkv_features, device=device))
        return WeightBuffers(self.memory("weight", values), scale, rows=NAMES[self.kind])

    def configs(self, chunk: int, most: int) -> list[TileConfig]:
        extents = (self.shape.qkv_features, self.shape.hidden)
        return list(tile_configs(*extents, self.form, self.rows, False, H200, chunk)[:most])

    def together(self, config: TileConfig) -> Callable[[], None]:
        how = Tiling("bfloat16", H200, config, self.rows, self.x_scales, self.tokens.chunk)
        return self._body([[self.tokens.tiled(self.x, weight, symbol("rows"), how)] for weight in self.weights])

    def apart(self, config: TileConfig) -> Callable[[], None]:
        how = Tiling("bfloat16", H200, config, self.rows, self.x_scales)
        products = [linear.tiled(self.qkv, self.x, weight, symbol("rows"), how) for weight in self.weights]
        return self._body([[product, self.tokens.computed(self.qkv)] for product in products])

    def _body(self, layers: list[list[Launch]]) -> Callable[[], None]:
        symbols = {"rows": self.rows, "num_tokens": self.rows}
        launches = [
            Prepared(launch, self.memory.tensors, symbols, self.machine) for layer in layers for launch in layer
        ]

        def body() -> None:
            for launch in launches:
                launch(programmatic=True)

        return body


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="64,128,256,1024,2048")
    parser.add_argument("--kinds", default=",".join(NAMES[kind] for kind in KINDS))
    parser.add_argument("--configs", type=int, default=3)
    arguments = parser.parse_args()
    for kind in (kind for kind in KINDS if NAMES[kind] in arguments.kinds.split(",")):
        for rows in map(int, arguments.rows.split(",")):
            products = Products(kind, rows)
            for name, bodies, chunk in (("apart", products.apart, 0), ("together", products.together, 128)):
                for config in products.configs(chunk, arguments.configs):
                    time = timed(bodies(config), 5) / len(products.weights)
                    print(f"{NAMES[kind]:14s} {rows:5d} rows: {time:8.1f} us {name} by {config}", flush=True)


if __name__ == "__main__":
    main()
