"""Times decode attention over caches larger than the L2 cache, one per layer, and causal prefill attention.

python -m tests.gpu.bench_attention
"""

from functools import partial

import torch

from tests.gpu.attention import DecodeAttention, PrefillAttention
from tests.gpu.kernels import LLAMA_8B
from tests.gpu.timing import PEAK_FLOPS_PER_US, report, timed

CASES = [(1, 128), (1, 1024), (1, 4096), (1, 32768), (8, 1024), (8, 8192), (64, 512), (64, 2048), (256, 512)]
PROMPTS = [128, 512, 2048, 8192, 16384]


class Layers:
    """Enough layers of one batch's cache to exceed the L2 cache several times."""

    def __init__(self, batch: int, length: int) -> None:
        shape = LLAMA_8B
        blocks = batch * -(-length // shape.page)
        self.bytes = 2 * batch * length * shape.kv_heads * shape.head_dim * 2
        self.count = max(2, min(32, -(-600_000_000 // self.bytes)))
        cache = (self.count, blocks, shape.kv_heads, shape.page, shape.head_dim)
        self.key_cache = torch.randn(cache, device="cuda", dtype=torch.bfloat16)
        self.value_cache = torch.randn(cache, device="cuda", dtype=torch.bfloat16)
        self.query = torch.randn(batch, shape.heads, shape.head_dim, device="cuda", dtype=torch.bfloat16)
        self.output = torch.empty_like(self.query)
        self.block_tables = torch.randperm(blocks, device="cuda").int().view(batch, -1)
        self.past_lens = torch.full((batch,), length - 1, device="cuda", dtype=torch.int32)

    def run(self, attention: DecodeAttention) -> None:
        for keys, values in zip(self.key_cache, self.value_cache, strict=True):
            tensors = (self.output, self.query, keys, values, self.past_lens, self.block_tables)
            attention(*tensors, programmatic=True)


def prefill(length: int, *, wgmma: bool) -> None:
    """One prompt of ``length`` tokens, nothing cached before it."""
    shape = LLAMA_8B
    layers = Layers(1, length)
    query = torch.randn(length, shape.heads, shape.head_dim, device="cuda", dtype=torch.bfloat16)
    output = torch.empty_like(query)
    cu_seqlens = torch.tensor([0, length], device="cuda", dtype=torch.int32)
    past_lens = torch.zeros(1, device="cuda", dtype=torch.int32)
    attention = PrefillAttention(shape, wgmma=wgmma)
    cache = (layers.key_cache[0], layers.value_cache[0])
    microseconds = timed(partial(attention, output, query, *cache, cu_seqlens, past_lens, layers.block_tables), 7)
    operations = 2 * shape.heads * shape.head_dim * length * (length + 1)
    floor = operations / PEAK_FLOPS_PER_US
    name = f"prefill {'wgmma' if attention.wgmma else 'mma'} {length} tokens"
    print(
        f"{name:50s} {microseconds:9.2f} us  {operations / microseconds / 1e6:6.1f} TFLOPS  "
        f"floor {floor:8.2f} us  {floor / microseconds:6.1%}",
        flush=True,
    )


def main() -> None:
    for length in PROMPTS:
        for wgmma in (True, False):
            prefill(length, wgmma=wgmma)
    for batch, length in CASES:
        layers = Layers(batch, length)
        body = partial(layers.run, DecodeAttention(LLAMA_8B))
        report(f"decode, batch {batch}, {length} tokens", timed(body), layers.bytes * layers.count, layers.count)


if __name__ == "__main__":
    main()
