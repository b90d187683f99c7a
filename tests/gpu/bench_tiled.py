"""Times tiled products against cuBLAS: those of a Llama 3.1 8B layer and its LM head, and of a Qwen3-30B-A3B layer.

Weights rotate, so that none is cached. Two figures each: a graph of a few launches on a cool card, and the same graph
replayed without pause, when the card's power limit counts.

python -m tests.gpu.bench_tiled [--rows 64,256] [--products gate_up,down] [--seconds 0.2] [--configs 8]
"""

import argparse
from collections.abc import Callable

import torch

from tests.gpu.launches import H200, Prepared
from tests.gpu.tiled import prepare
from tests.gpu.timing import sustained, timed
from trtllm_lite.plugins.cuda.tiles import TileConfig, tile_configs
from trtllm_lite.plugins.cuda.weight_form import weight_form
from trtllm_lite.plugins.gated_linear.cuda import gate_mul
from trtllm_lite.plugins.launch import Buffer, symbol

# (out_features, in_features)
PRODUCTS = {
    "qkv": (6144, 4096),
    "o": (4096, 4096),
    "gate_up": (14336, 4096),
    "down": (4096, 14336),
    "head": (128256, 4096),
    "mixture_qkv": (5120, 2048),
    "mixture_o": (2048, 4096),
    "scores": (256, 2048),
}
FLOAT_OUT, RESIDUAL = ("head", "scores"), ("o", "down", "mixture_o")
COLD_BYTES = 400 << 20


class Product:
    """One of PRODUCTS for ``rows`` rows, by any of its implementations."""

    def __init__(self, name: str, rows: int) -> None:
        self.out, self.in_features = PRODUCTS[name]
        self.rows, self.gated = rows, name == "gate_up"
        parts = 1 + self.gated
        self.copies = max(2, COLD_BYTES // (2 * parts * self.out * self.in_features))
        shape = (self.copies, *((2,) if self.gated else ()), self.out, self.in_features)
        self.weights = torch.randn(*shape, device="cuda", dtype=torch.bfloat16).mul_(self.in_features**-0.5)
        self.x = torch.randn(rows, self.in_features, device="cuda", dtype=torch.bfloat16)
        y_dtype = torch.float32 if name in FLOAT_OUT else torch.bfloat16
        self.y = torch.zeros(rows, self.out, device="cuda", dtype=y_dtype)
        self.both = torch.empty(rows, 2 * self.out if self.gated else 0, device="cuda", dtype=torch.bfloat16)
        self.residual = name in RESIDUAL

    def configs(self, most: int) -> list[TileConfig]:
        return tile_configs(self.out, self.in_features, weight_form("bfloat16"), self.rows, self.gated, H200)[:most]

    def cublas(self) -> Callable[[], None]:
        if not self.gated:
            return self._plain
        y, both = (Buffer(name, "bfloat16", (self.rows, size)) for name, size in (("y", self.out), ("g", 2 * self.out)))
        launch = gate_mul(y, both, symbol("rows"), activation="silu")
        silu = Prepared(launch, {y: self.y, both: self.both}, {"rows": self.rows})

        def body() -> None:
            for weight in self.weights:
                torch.mm(self.x, weight.view(-1, self.in_features).T, out=self.both)
                silu(programmatic=True)

        return body

    def _plain(self) -> None:
        for weight in self.weights:
            if self.residual:
                torch.addmm(self.y, self.x, weight.T, out=self.y)
            else:
                torch.mm(self.x, weight.T, out_dtype=self.y.dtype, out=self.y)

    def tiled(self, config: TileConfig) -> Callable[[], None]:
        residual = self.y if self.residual else None
        launches = [prepare(config, self.rows, self.y, self.x, weight, residual=residual) for weight in self.weights]

        def body() -> None:
            for launch in launches:
                launch(programmatic=True)

        return body


def bench(name: str, rows: int, seconds: float, most: int) -> None:
    product = Product(name, rows)
    bodies = {"cuBLAS": product.cublas()} | {
        f"{config} ({config.reason})": product.tiled(config) for config in product.configs(most)
    }
    for label, body in bodies.items():
        cool, hot = timed(body, 5) / product.copies, sustained(body, seconds) / product.copies
        print(f"{name:8s} {rows:5d} rows: {cool:8.1f} us cool, {hot:8.1f} us sustained: {label}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="64,128,256,512,2048")
    parser.add_argument("--products", default=",".join(PRODUCTS))
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--configs", type=int, default=8)
    arguments = parser.parse_args()
    for name in arguments.products.split(","):
        for rows in arguments.rows.split(","):
            bench(name, int(rows), arguments.seconds, arguments.configs)


if __name__ == "__main__":
    main()
