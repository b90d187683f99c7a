"""Times tiled products against cuBLAS: those of a Llama 3.1 8B layer and its LM head, and of a Qwen3-30B-A3B layer.

Weights rotate, so that none is cached. Two figures each: a graph of a few launches on a cool card, and the same graph
replayed without pause, when the card's power limit counts.

python -m tests.gpu.bench_tiled [--rows 64,256] [--products gate_up,down] [--seconds 0.2] [--configs 8]
    [--weights float8_e4m3fn]
"""

import argparse
from collections.abc import Callable

import torch

from tests.gpu.launches import H200, Prepared
from tests.gpu.memory import NAMES
from tests.gpu.tiled import prepare
from tests.gpu.timing import sustained, timed
from trtllm_lite.plugins.cuda.tiles import TileConfig, tile_configs
from trtllm_lite.plugins.cuda.weight_form import WeightForm, weight_form
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

    def __init__(self, name: str, rows: int, dtype: torch.dtype) -> None:
        self.dtype, self.is_bytes = dtype, dtype.itemsize == 1
        self.out, self.in_features = PRODUCTS[name]
        self.rows, self.gated = rows, name == "gate_up"
        parts = 1 + self.gated
        self.copies = max(2, COLD_BYTES // (dtype.itemsize * parts * self.out * self.in_features))
        shape = (self.copies, *((2,) if self.gated else ()), self.out, self.in_features)
        size = 40.0 if self.is_bytes else 1.0  # large enough for int8 and E4M3
        weights = torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
        self.weights = weights.mul_(size if self.is_bytes else self.in_features**-0.5).to(dtype)
        self.scale = torch.rand(*shape[1:-1], device="cuda") * (self.in_features**-0.5 / size**2)
        self.x = (torch.randn(rows, self.in_features, device="cuda", dtype=torch.bfloat16) * size).to(dtype)
        y_dtype = torch.float32 if name in FLOAT_OUT else dtype if self.gated else torch.bfloat16
        self.y = torch.zeros(rows, self.out, device="cuda", dtype=y_dtype)
        self.both = torch.empty(rows, 2 * self.out if self.gated else 0, device="cuda", dtype=torch.bfloat16)
        self.residual = name in RESIDUAL

    def configs(self, most: int) -> list[TileConfig]:
        return tile_configs(self.out, self.in_features, self._form(), self.rows, self.gated, H200)[:most]

    def _form(self) -> WeightForm:
        return weight_form(NAMES[self.dtype], rows=NAMES[self.dtype] if self.is_bytes else None)

    def cublas(self) -> Callable[[], None]:
        if self.is_bytes:
            return self._of_bytes
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

    def _of_bytes(self) -> None:
        """The products alone, with a scale for each row and each feature."""
        scales = torch.ones(self.rows, 1, device="cuda"), self.scale.reshape(1, -1)
        for weight in self.weights:
            torch._scaled_mm(self.x, weight.view(-1, self.in_features).T, *scales, out_dtype=torch.bfloat16)

    def tiled(self, config: TileConfig) -> Callable[[], None]:
        residual = self.y if self.residual else None
        more = {"residual": residual, "weight_scale": self.scale if self.is_bytes else None}
        launches = [prepare(config, self.rows, self.y, self.x, weight, **more) for weight in self.weights]

        def body() -> None:
            for launch in launches:
                launch(programmatic=True)

        return body


def bench(name: str, rows: int, dtype: torch.dtype, seconds: float, most: int) -> None:
    product = Product(name, rows, dtype)
    library = {} if dtype == torch.int8 else {"cuBLAS": product.cublas()}
    bodies = library | {f"{config} ({config.reason})": product.tiled(config) for config in product.configs(most)}
    for label, body in bodies.items():
        cool, hot = timed(body, 5) / product.copies, sustained(body, seconds) / product.copies
        print(f"{name:8s} {rows:5d} rows: {cool:8.1f} us cool, {hot:8.1f} us sustained: {label}", flush=True)


def dtype_of(name: str) -> torch.dtype:
    return next(dtype for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.int8) if NAMES[dtype] == name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="64,128,256,512,2048")
    parser.add_argument("--products", default=",".join(PRODUCTS))
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--configs", type=int, default=8)
    parser.add_argument("--weights", type=dtype_of, default=torch.bfloat16)
    arguments = parser.parse_args()
    for name in arguments.products.split(","):
        for rows in arguments.rows.split(","):
            bench(name, int(rows), arguments.weights, arguments.seconds, arguments.configs)


if __name__ == "__main__":
    main()
