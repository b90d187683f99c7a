"""Times the kernels that touch each row once, on buffers larger than the L2 cache.

python -m tests.gpu.bench_rows
"""

from collections.abc import Callable

import torch

from tests.gpu.device import Kernel
from tests.gpu.kernels import LLAMA_8B
from tests.gpu.row_kernels import GateMul, Sample
from tests.gpu.sampling import Sampling
from tests.gpu.timing import report, timed

ROWS = (256, 8192)
COPIES = 8  # number of buffers used in turn
SHAPE = LLAMA_8B


def _random(*extents: int) -> torch.Tensor:
    return torch.randn(COPIES, *extents, device="cuda", dtype=torch.bfloat16)


def _report(name: str, num_bytes: int, launch: Callable[[int], None]) -> None:
    """``launch(i)`` uses the i-th buffers and moves ``num_bytes``."""

    def body() -> None:
        for i in range(COPIES):
            launch(i)

    report(name, timed(body), num_bytes * COPIES, COPIES)


def gate_mul(rows: int) -> None:
    x, y = _random(rows, 2 * SHAPE.intermediate), _random(rows, SHAPE.intermediate)
    kernel = GateMul(SHAPE.intermediate)
    _report(f"gate_mul, {rows} rows", 6 * rows * SHAPE.intermediate, lambda i: kernel(y[i], x[i]))


def rms_norm(rows: int) -> None:
    x, other, total, y = (_random(rows, SHAPE.hidden) for _ in range(4))
    weight = torch.ones(SHAPE.hidden, device="cuda")
    defines: dict[str, int | str] = {"TL_HIDDEN": SHAPE.hidden, "TL_THREADS": 256, "TL_RESIDUAL": 1}
    defines |= {"TL_Y_TYPE": 0, "TL_ROW_SCALES": 0}
    kernel = Kernel("rms_norm/cuda.cuh", "rms_norm", 256, 0, defines)

    def launch(i: int) -> None:
        kernel(y[i], None, total[i], x[i], weight, other[i], 1e-5, 0.0, grid=rows)

    _report(f"rms_norm with residual, {rows} rows", 8 * rows * SHAPE.hidden, launch)


def rope_cache(rows: int) -> None:
    qkv, q = _random(rows, SHAPE.qkv_features), _random(rows, SHAPE.heads, SHAPE.head_dim)
    keys, values = (_random(rows // SHAPE.page, SHAPE.kv_heads, SHAPE.page, SHAPE.head_dim) for _ in range(2))
    cos, sin = torch.rand(2, rows, SHAPE.head_dim // 2, device="cuda")
    slots = torch.arange(rows, device="cuda", dtype=torch.int32)
    defines: dict[str, int | str] = {
        "TL_HEADS": SHAPE.heads,
        "TL_KV_HEADS": SHAPE.kv_heads,
        "TL_HEAD_DIM": SHAPE.head_dim,
        "TL_ROTARY_DIM": SHAPE.head_dim,
        "TL_PAGE": SHAPE.page,
        "TL_BLOCK_BYTES": SHAPE.kv_heads * SHAPE.head_dim * SHAPE.page * 2,
        "TL_WARPS": 8,
        "TL_NORM": 0,
        "TL_VALUE_NORM": 0,
        "TL_APPENDS": 1,
        "TL_STORED": 0,
    }
    kernel = Kernel("paged_attention/rope_cache.cuh", "rope_cache", 256, 0, defines)

    def launch(i: int) -> None:
        kernel(q[i], keys[i], values[i], None, qkv[i], cos, sin, slots, None, None, None, 1e-5, 1.0, 1.0, grid=rows)

    _report(f"rope_cache, {rows} rows", 4 * rows * SHAPE.qkv_features, launch)


def sample(rows: int, name: str, way: Sampling, num_allowed: int | None = None) -> None:
    """Time rows of 513 KB, as spread as a trained model's logits. ``num_allowed``: how many tokens may be drawn."""
    logits = torch.randn(COPIES, rows, SHAPE.vocab, device="cuda") * 3
    cluster = 8 if rows <= 8 else 2
    kernel = Sample(SHAPE.vocab, rows, blocks=cluster, cluster=cluster, max_edits=2048)
    inputs = kernel.inputs(list(range(rows)), [way] * rows)
    if num_allowed is not None:
        kernel.allow(inputs, [torch.randperm(SHAPE.vocab) < num_allowed for _ in range(rows)])
    tokens, last_tokens = (torch.zeros(rows, device="cuda", dtype=torch.int32) for _ in range(2))
    num_bytes = 4 * rows * SHAPE.vocab
    _report(f"sample {name}, {rows} rows", num_bytes, lambda i: kernel(tokens, logits[i], last_tokens, inputs))


def main() -> None:
    for rows in ROWS:
        gate_mul(rows)
        rms_norm(rows)
        rope_cache(rows)
    for rows in (1, 8, 64, 256):
        sample(rows, "greedy", Sampling(temperature=0.0))
        sample(rows, "temperature", Sampling())
        sample(rows, "top_k 40", Sampling(top_k=40))
        sample(rows, "top_p 0.9", Sampling(top_p=0.9))
        sample(rows, "penalties of 1000 tokens", Sampling(presence_penalty=0.5, prompt=tuple(range(1000))))
        for num_allowed in (5, 100_000):  # within a grammar's fixed part, and within free text
            sample(rows, f"greedy, {num_allowed} tokens", Sampling(temperature=0.0), num_allowed)
            sample(rows, f"temperature, {num_allowed} tokens", Sampling(), num_allowed)
        for top in (0, 5, 20):
            sample(rows, f"greedy, {top} log probabilities", Sampling(temperature=0.0, logprobs=top))


if __name__ == "__main__":
    main()
