"""Times the kernels of latent attention in the extents of DeepSeek-V2-Lite (16 heads) and V3 (128).

Layers rotate, so that no cache stays in the L2 cache. Floors are the times to read latents and matrices or, for
attention, to compute the FLOPs of existing rows, if that takes longer.

python -m tests.gpu.bench_latent [--heads 16,128] [--batch 1,8,64] [--context 1024,8192] [--prompt 2048]
"""

import argparse
from collections.abc import Callable, Sequence

import torch

from tests.gpu.device import GPU
from tests.gpu.latent_checks import Attention, Layer, Step
from tests.gpu.timing import PEAK_BYTES_PER_US, PEAK_FLOPS_PER_US, timed

DTYPE = torch.bfloat16
_CACHE_BYTES = 400_000_000  # in all layers together: several times the L2 cache


def _layer(layer: Layer, batch: list[tuple[int, int]], split: bool) -> Attention:
    """A layer whose caches hold random numbers."""
    step = Step(layer, batch, DTYPE, "cuda")
    shape = (step.num_blocks, 1, layer.page)
    keys, latents = (torch.randn(*shape, dim, device="cuda", dtype=DTYPE) for dim in step.dims)
    step.caches = keys, latents
    return Attention(step, GPU, len(step.query), split=split)


def _body(layers: Sequence[Attention], names: Sequence[str]) -> Callable[[], None]:
    prepared = [one.prepared(name) for one in layers for name in names]

    def body() -> None:
        for launch in prepared:
            launch(programmatic=True)

    return body


def _report(name: str, microseconds: float, num_bytes: float, flops: float = 0.0) -> None:
    floor = max(num_bytes / PEAK_BYTES_PER_US, flops / PEAK_FLOPS_PER_US)
    rates = f"{num_bytes / microseconds / 1e6:5.2f} TB/s {flops / microseconds / 1e6:6.1f} TFLOPS"
    print(f"{name:46s} {microseconds:9.2f} us  {rates}  floor {floor:8.2f} us {floor / microseconds:6.1%}", flush=True)


def bench(heads: int, batch: list[tuple[int, int]], what: str, *, split: bool) -> None:
    layer, rows = Layer(heads, page=64), sum(new for _, new in batch)
    dim = layer.latent_dim + layer.rotary_dim
    pairs = sum(new * past + new * (new + 1) // 2 for past, new in batch)
    cached = 2 * dim * sum(past + new for past, new in batch)
    count = max(2, min(64, _CACHE_BYTES // cached))
    layers = [_layer(layer, batch, split) for _ in range(count)]
    _body(layers, list(layers[0].launches))()
    torch.cuda.synchronize()
    matrix = 2 * heads * layer.latent_dim
    depths = {"absorb": layer.plain_dim, "values": layer.value_dim}
    for name in layers[0].launches:
        depth = depths.get(name, 0)
        sizes = (cached, 2 * heads * pairs * (dim + layer.latent_dim)) if name == "attend" else (matrix * depth,)
        flops = sizes[1] if len(sizes) > 1 else matrix * depth * rows
        _report(f"{heads} heads, {what}: {name}", timed(_body(layers, [name])) / count, sizes[0], flops)
    time = timed(_body(layers, list(layers[0].launches))) / count
    num_bytes = cached + matrix * (layer.plain_dim + layer.value_dim)
    _report(f"{heads} heads, {what}: all", time, num_bytes, 2 * heads * pairs * (dim + layer.latent_dim))


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("heads", "16,128"), ("batch", "1,8,64"), ("context", "1024,8192"), ("prompt", "2048")):
        parser.add_argument(f"--{name}", default=default)
    options = parser.parse_args()
    numbers = {name: [int(n) for n in text.split(",") if n] for name, text in vars(options).items()}
    for heads in numbers["heads"]:
        for size in numbers["batch"]:
            for context in numbers["context"]:
                bench(heads, [(context - 1, 1)] * size, f"{size} x {context}", split=True)
        for length in numbers["prompt"]:
            bench(heads, [(0, length)], f"a prompt of {length}", split=False)


if __name__ == "__main__":
    main()
