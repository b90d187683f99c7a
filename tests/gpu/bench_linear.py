"""Times the matrix products of a decode step as one CUDA graph; each layer has its own weights, so none is cached.

python -m tests.gpu.bench_linear [--layers 32]
"""

import argparse
from functools import partial

import torch

from tests.gpu.kernels import GatedLinear, GemvConfig, Linear
from tests.gpu.timing import report, timed

HIDDEN, INTERMEDIATE, QKV = 4096, 14336, 6144
OPS = ("qkv", "o", "gate_up", "down")


class Layers:
    """The weights of every layer, and the buffers of a step of ``rows`` tokens."""

    def __init__(self, layers: int) -> None:
        def random(*shape: int) -> torch.Tensor:
            return torch.randn(layers, *shape, device="cuda", dtype=torch.bfloat16).mul_(shape[-1] ** -0.5)

        self.layers = layers
        self.weights = {
            "qkv": random(QKV, HIDDEN),
            "o": random(HIDDEN, HIDDEN),
            "gate_up": random(2, INTERMEDIATE, HIDDEN),
            "down": random(HIDDEN, INTERMEDIATE),
        }
        self.norm = torch.ones(HIDDEN, device="cuda")

    def num_bytes(self, *ops: str) -> int:
        return sum(self.weights[op].numel() * 2 for op in ops)


class Chain:
    """The four products of a layer for at most ``tokens`` rows, run over all layers."""

    def __init__(self, layers: Layers, tokens: int, configs: dict[str, GemvConfig], programmatic: bool = True) -> None:
        self.layers, self.programmatic = layers, programmatic
        self.hidden = torch.randn(tokens, HIDDEN, device="cuda", dtype=torch.bfloat16)
        self.qkv = torch.empty(tokens, QKV, device="cuda", dtype=torch.bfloat16)
        self.gated = torch.empty(tokens, INTERMEDIATE, device="cuda", dtype=torch.bfloat16)
        self.kernels = {
            "qkv": Linear(QKV, HIDDEN, tokens, norm=True, config=configs.get("qkv")),
            "o": Linear(HIDDEN, HIDDEN, tokens, residual=True, config=configs.get("o")),
            "gate_up": GatedLinear(INTERMEDIATE, HIDDEN, tokens, norm=True, config=configs.get("gate_up")),
            "down": Linear(HIDDEN, INTERMEDIATE, tokens, residual=True, config=configs.get("down")),
        }

    def run(self, ops: tuple[str, ...] = OPS) -> None:
        attention = self.qkv.flatten()[: self.hidden.numel()].view(-1, HIDDEN)
        steps = [(op, self.layers.weights[op][layer]) for layer in range(self.layers.layers) for op in ops]
        for op, weight in steps:
            extra = {"programmatic": self.programmatic}
            if op == "qkv":
                self.kernels[op](self.qkv, self.hidden, weight, norm_weight=self.layers.norm, **extra)
            elif op == "o":
                self.kernels[op](self.hidden, attention, weight, residual=self.hidden, **extra)
            elif op == "gate_up":
                self.kernels[op](self.gated, self.hidden, weight, norm_weight=self.layers.norm, **extra)
            else:
                self.kernels[op](self.hidden, self.gated, weight, residual=self.hidden, **extra)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=32)
    arguments = parser.parse_args()
    layers = Layers(arguments.layers)
    for tokens in (1, 2, 4, 8, 16):
        chain = Chain(layers, tokens, {})
        report(f"M={tokens} chain of 4x{layers.layers}", timed(chain.run), layers.num_bytes(*OPS), 1)
        for op in OPS:
            report(f"M={tokens} {op} alone", timed(partial(chain.run, (op,))), layers.num_bytes(op), layers.layers)


if __name__ == "__main__":
    main()
