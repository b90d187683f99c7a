"""Times decode attention over caches larger than the L2 cache, one per layer, and causal prefill attention.

python -m tests.gpu.bench_attention [decode|prefill|all] [float8_e4m3fn|int8] [plain]: the cache has this type, or
bfloat16; with ``plain``, only values have it.

Each line has the time of isolated runs and that of runs back to back, when power limits the clocks.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tests.gpu.attention import DecodeAttention, PrefillAttention
from tests.gpu.kernels import LLAMA_8B, WHOLE_SM_BYTES
from tests.gpu.memory import NAMES
from tests.gpu.paged import CACHE_SCALES, CacheTypes, in_range
from tests.gpu.timing import PEAK_BYTES_PER_US, PEAK_FLOPS_PER_US, sustained, timed

FEW = [(1, 128), (1, 1024), (1, 4096), (1, 32768), (8, 1024), (8, 8192)]
MANY = [(64, 192), (256, 192), (512, 192), (64, 512), (64, 2048), (256, 512), (400, 1152), (512, 1152)]
PROMPTS = [(64, 128), (1, 512), (4, 512), (1, 2048), (4, 2048), (1, 8192), (1, 16384)]


class Layers:
    """Layers of one batch's cache: enough of them to exceed the L2 cache several times."""

    def __init__(self, batch: int, lengths: list[int], types: CacheTypes) -> None:
        shape = LLAMA_8B
        counts = [-(-length // shape.page) for length in lengths]
        blocks = sum(counts)
        self.bytes = sum(lengths) * shape.kv_heads * shape.head_dim * types.pair_bytes
        self.count = max(2, min(32, -(-600_000_000 // self.bytes)))
        cache = (self.count * blocks, shape.kv_heads, shape.page, shape.head_dim)
        self.key_cache, self.value_cache = (
            types.apart(in_range(torch.randn(cache, device="cuda") / scale, dtype).to(dtype)).chunk(self.count)
            for dtype, scale in zip(types.both, types.scales, strict=True)
        )
        self.query = _queries(batch, types)
        self.output = torch.empty_like(self.query, dtype=torch.bfloat16)
        self.block_tables = torch.zeros(batch, max(counts), device="cuda", dtype=torch.int32)
        numbers = torch.randperm(blocks, device="cuda").int()
        for table, mine in zip(self.block_tables, numbers.split(counts), strict=True):
            table[: len(mine)] = mine
        self.past_lens = torch.tensor(lengths, device="cuda", dtype=torch.int32) - 1
        last = self.past_lens.long()
        blocks = self.block_tables.gather(1, last[:, None] // shape.page)[:, 0]
        self.slots = (blocks * shape.page + last % shape.page).int()

    def run(self, attention: DecodeAttention) -> None:
        for keys, values in zip(self.key_cache, self.value_cache, strict=True):
            tensors = (self.output, self.query, keys, values, self.past_lens, self.block_tables, self.slots)
            attention(*tensors, programmatic=True)


def _queries(rows: int, types: CacheTypes) -> torch.Tensor:
    return torch.randn(rows, LLAMA_8B.heads, LLAMA_8B.head_dim, device="cuda", dtype=types.queries)


def report(name: str, body: Callable[[], None], floor: float, count: int = 1) -> None:
    """Print a line; ``floor`` is the least microseconds for each of the ``count`` launches of ``body``."""
    cold, hot = timed(body, 7) / count, sustained(body, 0.6) / count
    print(f"{name:40s} {cold:9.2f} us, sustained {hot:9.2f}, floor {floor:9.2f}, {floor / cold:6.1%}", flush=True)


def decode(batch: int, lengths: list[int], name: str, cache: dict[str, Any]) -> None:
    layers = Layers(batch, lengths, CacheTypes.of(torch.bfloat16, *cache.values()))
    shared_bytes = 0 if batch <= 16 else WHOLE_SM_BYTES
    attention = DecodeAttention(LLAMA_8B, max_items=max(256, batch), shared_bytes=shared_bytes, **cache)
    report(name, partial(layers.run, attention), layers.bytes / PEAK_BYTES_PER_US, layers.count)


def prefill(batch: int, length: int, cache: dict[str, Any]) -> None:
    """Prefill ``batch`` prompts of ``length`` tokens with an empty cache."""
    shape = LLAMA_8B
    types = CacheTypes.of(torch.bfloat16, *cache.values())
    layers, query = Layers(batch, [length] * batch, types), _queries(batch * length, types)
    output = torch.empty_like(query, dtype=torch.bfloat16)
    cu_seqlens = torch.arange(batch + 1, device="cuda", dtype=torch.int32) * length
    past_lens = torch.zeros(batch, device="cuda", dtype=torch.int32)
    wide_blocks = layers.block_tables.numel() if cache["cache_dtype"] else 0
    attention = PrefillAttention(shape, wide_blocks=wide_blocks, **cache)
    caches = list(zip(layers.key_cache, layers.value_cache, strict=True))

    def body() -> None:
        for keys_and_values in caches:
            attention(output, query, *keys_and_values, cu_seqlens, past_lens, layers.block_tables, programmatic=True)

    operations = 2 * batch * shape.heads * shape.head_dim * length * (length + 1)
    moved = layers.bytes + 2 * query.nbytes
    floor = max(operations / PEAK_FLOPS_PER_US, moved / PEAK_BYTES_PER_US)
    report(f"prefill, {batch} prompts of {length}", body, floor, len(caches))


def main(what: str = "all", in_bytes: str = "", keys: str = "") -> None:
    """``in_bytes``: the type of an 8-bit cache; ``keys``: ``plain`` if only values have it."""
    dtype = {NAMES[dtype]: dtype for dtype in CACHE_SCALES}[in_bytes] if in_bytes else None
    cache = {"cache_dtype": dtype, "plain_keys": keys == "plain"}
    for batch, length in FEW + MANY if what != "prefill" else []:
        decode(batch, [length] * batch, f"decode, {batch} of {length} tokens", cache)
    if what != "prefill":
        decode(256, [64 + 37 * i % 1000 for i in range(256)], "decode, 256 of 64 to 1063 tokens", cache)
        decode(32, [131072] + [4096] * 31, "decode, 1 of 131072 and 31 of 4096 tokens", cache)
        decode(32, [8064] * 32, "decode, 32 of 8064 tokens, as many", cache)
    for batch, length in PROMPTS if what != "decode" else []:
        prefill(batch, length, cache)


if __name__ == "__main__":
    main(*sys.argv[1:])
