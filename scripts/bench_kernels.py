"""Times the CPU kernels on the shapes of known models; each call gets operands that are not in the caches.

    python scripts/bench_kernels.py --num_threads 2 --dtype bfloat16 --op Linear --rows 1 128

Per case: microseconds (the given percentile of all calls, because other processes only ever add time), GB/s over the
bytes the operator must read and write once, its share of the bandwidth a plain read loop reaches on as many threads,
and GFLOPS. Whichever limit is nearer, bandwidth or arithmetic, is the one to compare with.

Needs an installation with trtllm_lite._testing, as `bash scripts/test.sh` makes it.
"""

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from rich.console import Console
from rich.table import Table

from trtllm_lite import _testing
from trtllm_lite.bench.machine import read_bandwidth
from trtllm_lite.plugins.packing import packed_shape

WEIGHT_DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
# Weight types with a float16 scale for each block, and an offset if elements have no sign.
BLOCK_DTYPES = {"int8": np.int8, "int4": ml_dtypes.int4, "uint4": ml_dtypes.uint4}
BLOCK = 32
SWEEP_BYTES = 64 << 20
PROBE_BYTES = 256 << 20  # more than caches hold


@dataclass(frozen=True)
class Model:
    """The extents of a Llama-like model that decide the shapes of its kernels."""

    hidden: int
    intermediate: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab: int


@dataclass(frozen=True)
class Mixture:
    """The extents of a mixture of experts."""

    hidden: int
    inner: int
    experts: int
    top_k: int


MODELS: dict[str, Model | Mixture] = {
    "smollm2-135m": Model(576, 1536, 9, 3, 64, 49152),
    "llama3-1b": Model(2048, 8192, 32, 8, 64, 128256),
    "granite3-1b-a400m": Mixture(1024, 512, 32, 8),
    "olmoe-1b-7b": Mixture(2048, 1024, 64, 8),
}


@dataclass(frozen=True)
class Case:
    """One kernel call: its operands, and the least bytes and operations that it takes."""

    op: str
    name: str
    rows: int
    inputs: list[np.ndarray | None]
    outputs: list[np.ndarray | None]
    attributes: dict[str, float]
    layouts: list[str]
    flops: float
    weight_dtype: str = ""  # tells types of equal width apart
    share: float = 1.0  # share of the weights that are read

    @property
    def bytes(self) -> float:
        """Bytes of all operands, each counted once, and of the cache blocks that PagedAttention reads."""
        distinct = {id(array): array for array in (*self.inputs, *self.outputs) if array is not None}
        return self.share * sum(array.nbytes for array in distinct.values())


def activations(*shape: int) -> np.ndarray:
    """Random operands with magnitudes of about 1."""
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def weight(shape: Sequence[int], layout: str, dtype: str) -> list[np.ndarray | None]:
    """The operands of a product that belong to a weight: packed weight, scale, bias, row scales, offset, addends."""
    if dtype in WEIGHT_DTYPES:
        packed = np.full(packed_shape(shape, layout), 0.01, WEIGHT_DTYPES[dtype])
        return [packed.view(np.uint16) if dtype == "bfloat16" else packed, *[None] * 5]
    packed = np.ones(packed_shape(shape, layout, BLOCK_DTYPES[dtype]), np.int8 if dtype == "int8" else np.uint8)
    scale = np.full(packed_shape((*shape[:-1], shape[-1] // BLOCK), layout), 0.01, np.float16)
    return [packed, scale, None, None, scale.copy() if dtype == "uint4" else None, None]


def product_case(op: str, name: str, x: np.ndarray, shape: Sequence[int], dtype: str, activation: str) -> Case:
    """One matrix product with a weight of logical ``shape``."""
    layout = {"Linear": "panel64", "GatedLinear": "gated_panel64"}[op]
    outputs: list[np.ndarray | None] = [activations(len(x), shape[-2])]
    layouts = ["row_major", layout, layout, "row_major", "row_major", layout, "row_major"]
    flops = 2.0 * len(x) * float(np.prod(shape))
    inputs = [x, *weight(shape, layout, dtype)]
    return Case(op, name, len(x), inputs, outputs, {"activation": activation}, layouts, flops, weight_dtype=dtype)


def linear_cases(model: Model, rows: int, dtype: str) -> Iterator[Case]:
    """The matrix products of a layer and the LM head."""
    attention = model.num_heads * model.head_dim
    shapes = {
        "qkv": (attention + 2 * model.num_kv_heads * model.head_dim, model.hidden),
        "o": (model.hidden, attention),
        "down": (model.hidden, model.intermediate),
        "lm_head": (model.vocab, model.hidden),
    }
    for name, shape in shapes.items():
        yield product_case("Linear", name, activations(rows, shape[1]), shape, dtype, "none")
    gated = (2, model.intermediate, model.hidden)
    yield product_case("GatedLinear", "gate_up", activations(rows, model.hidden), gated, dtype, "silu")


def mixture_cases(mixture: Mixture, rows: int, dtype: str) -> Iterator[Case]:
    """Both products of the experts that rows have chosen; rows are small beside weights."""
    hidden, inner, experts, top_k = mixture.hidden, mixture.inner, mixture.experts, mixture.top_k
    rng = np.random.default_rng(0)
    ids = np.array([rng.permutation(experts)[:top_k] for _ in range(rows)], np.int32)
    share, chosen = len(np.unique(ids)) / experts, activations(rows, top_k)
    flops, room = 2.0 * rows * top_k * hidden * inner, np.zeros(rows, np.int32)
    shape: tuple[int, ...] = (experts, 2, inner, hidden)
    packed, scale, bias, _, offset, _ = weight(shape, "gated_panel64", dtype)
    inputs = [activations(rows, hidden), ids, packed, scale, bias, offset, None]
    outputs: list[np.ndarray | None] = [activations(rows, top_k, inner), activations(rows, hidden), room]
    layouts = [*["row_major"] * 2, *["gated_panel64"] * 2, "row_major", "gated_panel64", "row_major"]
    how: dict[str, float] = {"moe_tp_size": 1}
    gated = {**how, "activation": "silu", "self_gated": 0}
    yield Case("GroupedGatedLinear", "gate_up", rows, inputs, outputs, gated, layouts, 2 * flops, dtype, share)
    shape = (experts, hidden, inner)
    packed, scale, bias, _, offset, _ = weight(shape, "panel64", dtype)
    inputs = [activations(rows, top_k, inner), ids, chosen, packed, scale, bias, offset]
    outputs = [activations(rows, hidden), activations(rows, inner), room]
    layouts = [*["row_major"] * 3, *["panel64"] * 2, "row_major", "panel64"]
    yield Case("GroupedLinear", "down", rows, inputs, outputs, how, layouts, flops, dtype, share)


def rms_norm_case(model: Model, rows: int) -> Case:
    """RmsNorm with residual and sum, as inside a layer."""
    inputs: list[np.ndarray | None] = [activations(rows, model.hidden) for _ in range(3)]
    inputs[1] = activations(model.hidden)
    outputs: list[np.ndarray | None] = [activations(rows, model.hidden) for _ in range(2)]
    flops = 4.0 * rows * model.hidden
    return Case("RmsNorm", "norm", rows, inputs, outputs, {"epsilon": 1e-5}, ["row_major"] * 3, flops)


def attention_case(model: Model, num_seqs: int, new_tokens: int, past: int, block_size: int = 32) -> Case:
    """``num_seqs`` sequences of ``past`` cached tokens, each with ``new_tokens`` more."""
    length, rows = past + new_tokens, num_seqs * new_tokens
    blocks = -(-length // block_size)
    heads = model.num_heads + 2 * model.num_kv_heads
    caches = [activations(num_seqs * blocks, model.num_kv_heads, model.head_dim, block_size) for _ in range(2)]
    caches[1] = caches[1].reshape(num_seqs * blocks, model.num_kv_heads, block_size, model.head_dim)
    inputs: list[np.ndarray | None] = [
        activations(rows, heads * model.head_dim),
        activations(rows, model.head_dim // 2),
        activations(rows, model.head_dim // 2),
        *caches,
        (np.arange(num_seqs + 1) * new_tokens).astype(np.int32),
        np.full(num_seqs, past, np.int32),
        np.arange(num_seqs * blocks, dtype=np.int32).reshape(num_seqs, blocks),
        None,
        None,
    ]
    attended = num_seqs * sum(range(past + 1, length + 1))
    return Case(
        "PagedAttention",
        f"past {past}",
        rows,
        inputs,
        [activations(rows, model.num_heads * model.head_dim), *caches],
        {
            "num_heads": model.num_heads,
            "scale": model.head_dim**-0.5,
            "window": 0,
            "chunked": 0,
            "floor_scale": 0,
            "floor_offset": 0,
            "attn_scale": 0.0,
            "first_position": 0,
            "cache_group": 0,
            "softcap": 0.0,
            "norm_epsilon": 0.0,
            "norm_after_rope": 0,
            "appends": 1,
        },
        ["row_major"] * len(inputs),
        4.0 * attended * model.num_heads * model.head_dim,
    )


def cases(model: Model | Mixture, rows: int, dtype: str) -> Iterator[Case]:
    """Every case of a model; ``rows`` are decoding sequences, and from 64 on the tokens of one prompt."""
    if isinstance(model, Mixture):
        yield from mixture_cases(model, rows, dtype)
        return
    yield from linear_cases(model, rows, dtype)
    yield rms_norm_case(model, rows)
    if rows >= 64:
        yield attention_case(model, 1, rows, 0)
        yield attention_case(model, 1, rows, 1024)
    else:
        yield attention_case(model, rows, 1, 127)
        yield attention_case(model, rows, 1, 2047)


def _dtype_name(array: np.ndarray | None, weight_dtype: str) -> str:
    if array is None:
        return ""
    return {np.uint16: "bfloat16", np.uint8: weight_dtype}.get(array.dtype.type, array.dtype.name)


def seconds_per_call(case: Case, options: argparse.Namespace) -> float:
    """Seconds of a call: the given percentile over all calls."""
    samples = _testing.time_kernel(
        case.op,
        case.inputs,
        case.outputs,
        case.attributes,
        layouts=case.layouts,
        dtypes=[_dtype_name(array, case.weight_dtype) for array in case.inputs],
        isa=options.isa,
        num_threads=options.num_threads,
        product_dtype=options.product_dtype,
        repeats=options.repeats,
        sweep_bytes=SWEEP_BYTES,
    )
    return float(np.percentile(samples, options.percentile))


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--op", nargs="+", help="operators to time (default: all)")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 128])
    parser.add_argument("--dtype", choices=[*WEIGHT_DTYPES, *BLOCK_DTYPES], default="bfloat16", help="of the weights")
    parser.add_argument(
        "--product_dtype", choices=["float32", "bfloat16"], default="float32", help="what x may be rounded to"
    )
    parser.add_argument("--isa", choices=["auto", *_testing.supported_isas()], default="auto")
    parser.add_argument("--num_threads", type=int, default=0, help="0: all cores")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--percentile", type=float, default=20)
    options = parser.parse_args()
    bandwidth = read_bandwidth(options.num_threads or len(os.sched_getaffinity(0)), PROBE_BYTES)
    table = Table(title=f"{options.isa}, {options.dtype}; plain reads: {bandwidth / 1e9:.1f} GB/s")
    for column in ("model", "op", "case", "rows", "µs", "GB/s", "of reads", "GFLOPS"):
        table.add_column(column, justify="left" if column in ("model", "op", "case") else "right")
    for name in options.model:
        for rows in options.rows:
            for case in cases(MODELS[name], rows, options.dtype):
                if options.op and case.op not in options.op:
                    continue
                seconds = seconds_per_call(case, options)
                rate = case.bytes / seconds
                numbers = [f"{seconds * 1e6:.1f}", f"{rate / 1e9:.1f}", f"{rate / bandwidth:.0%}"]
                table.add_row(name, case.op, case.name, str(rows), *numbers, f"{case.flops / seconds / 1e9:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
