"""Times the kernels of mixtures of experts in the shape of Qwen3-30B-A3B or gpt-oss-20b, with random choices.

Layers rotate, so that no weight is cached. Floors are the times to read the weights and scales of the chosen experts.
Rows that are sorted by expert are multiplied by the heuristic's tiles, or by tiles of ``columns`` columns.

python -m tests.gpu.bench_experts [--shape qwen3] [--forms 16,fp8,mxfp4] [--rows 1,8,64] [--layers 4] [--columns 192]
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import torch

from tests.gpu.device import GPU
from tests.gpu.expert_checks import Lists, Mixture, few_rows
from tests.gpu.launches import H200, Prepared
from tests.gpu.memory import Memory
from tests.gpu.timing import report, timed
from tests.gpu.weights import Form
from trtllm_lite.common.vocabulary import DTYPES
from trtllm_lite.plugins.cuda.grouped import ExpertChoice, GroupTiling, group_configs, most_gemv_rows
from trtllm_lite.plugins.cuda.weight_form import form_of
from trtllm_lite.plugins.grouped_gated_linear import cuda as gated
from trtllm_lite.plugins.grouped_linear import cuda as summed
from trtllm_lite.plugins.launch import Buffer, Launch, WeightBuffers, symbol
from trtllm_lite.plugins.router import cuda as router
from trtllm_lite.plugins.router.scores import Scores, Scoring

SHAPES = {"qwen3": (128, 8, 2048, 768), "gpt_oss": (32, 4, 2880, 2880)}
DTYPE = torch.bfloat16
FORMS = {
    "16": Form("bfloat16"),
    "fp8": Form("float8_e4m3fn", 128, "float32"),
    "fp8_rows": Form("float8_e4m3fn", 64, "float32"),
    "mxfp4": Form("float4_e2m1fn", 32, "bfloat16"),
    "int8": Form("int8", 32, "float16"),
    "int4": Form("int4", 64, "bfloat16"),
}


@dataclass(frozen=True)
class Layer:
    """The launches of one layer by name, and their tensors."""

    memory: Memory
    launches: dict[str, list[Launch]]
    read: dict[str, int]  # by launch, the bytes of the experts that some row has chosen


def random_bytes(form: Form, memory: Memory, name: str, *shape: int) -> WeightBuffers:
    """A weight with random elements and scales: neither their values nor their layout matters here."""
    if form.dtype == "bfloat16":
        return WeightBuffers(memory(name, torch.empty(shape, device="cuda", dtype=DTYPE).normal_(std=0.02)))
    weight = Buffer(name, form.dtype, shape)
    bits = DTYPES[form.dtype].bits
    stored = torch.empty(prod(shape) * bits // 8, device="cuda", dtype=torch.uint8)
    memory.tensors[weight] = stored.random_(0, 256)
    blocks = (*shape[:-1], shape[-1] // form.block)
    scale = Buffer(f"{name}.scale", form.number, blocks, layout="rows8")
    memory.tensors[scale] = torch.full(blocks, 1e-3, device="cuda", dtype=getattr(torch, form.number))
    return WeightBuffers(weight, scale)


def tiling(choice: ExpertChoice, weight: WeightBuffers, max_rows: int, columns: int | None) -> GroupTiling:
    """The tiles for multiplying rows sorted by expert with ``weight``."""
    group_rows = choice.group_rows(max_rows)
    configs = {config.columns: config for config in group_configs(weight, group_rows)}
    config = configs[columns or next(iter(configs))]
    return GroupTiling("bfloat16", H200, choice, max_rows * choice.top_k, group_rows, config)


def layer(shape: str, form: Form, rows: int, max_rows: int, columns: int | None) -> Layer:
    experts, top_k, width, inner = SHAPES[shape]
    mixture, memory = Mixture(experts, top_k, width, inner, max_rows), Memory()
    lists = Lists(mixture, memory, "cuda")
    scores = torch.randn(rows, mixture.columns, device="cuda")
    both = scores.reshape(rows, 2, -1).sum(1)
    chosen = len(both.topk(top_k).indices.unique())
    gate_up = random_bytes(form, memory, "gate_up", experts, 2, inner, width)
    down = random_bytes(form, memory, "down", experts, width, inner)
    sizes = [sum(memory.tensors[b].nbytes for b in (w.values, w.scale) if b is not None) for w in (gate_up, down)]
    read = {"gated": sizes[0] * chosen // experts, "summed": sizes[1] * chosen // experts}

    def room(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda").to(DTYPE)

    x, y = memory("x", room(max_rows, width)), memory("y", room(max_rows, width))
    of_scores, num_rows, choice = memory("scores", scores), symbol("rows"), mixture.choice
    by_scores = Scores(of_scores, num_rows, max_rows, choice, Scoring("normalized_softmax"))
    if max_rows <= most_gemv_rows(form_of(gate_up), H200):
        hidden = memory("hidden", room(max_rows, top_k, inner))
        first, second = few_rows(mixture, DTYPE, H200, form_of(gate_up))
        norm = memory("norm", torch.ones(width, device="cuda")), 1e-6
        of_gated = (hidden, x, gate_up, by_scores, lists.tally, first)
        launches = {
            "gated": [gated.stream(*of_gated, activation="silu", norm=norm)],
            "summed": [summed.stream(y, hidden, down, by_scores, second, x)],
        }
        return Layer(memory, launches, read)
    count = max_rows * top_k
    tiles_of_gated, tiles_of_down = (tiling(choice, each, max_rows, columns) for each in (gate_up, down))
    hidden = memory("hidden", room(count, inner))
    rows_of_x, results = memory("sx", room(count, width)), memory("sy", room(count, width))
    of_experts = summed.Results(results, lists.places, lists.shares, x)
    weight = memory("norm", torch.ones(width, device="cuda"))
    norm = summed.SumNorm(memory("normed", room(max_rows, width)), None, weight, 1e-6)
    launches = {
        "sort": router.sort(lists.ids, lists.places, lists.shares, lists.groups, lists.tally, by_scores),
        "rows": [gated.sort_rows(rows_of_x, x, lists.places, num_rows, choice)],
        "gated": [gated.tiled(hidden, rows_of_x, gate_up, lists.groups, tiles_of_gated, activation="silu")],
        "summed": [summed.tiled(results, hidden, down, lists.groups, tiles_of_down)],
        "combine": [summed.combine(y, of_experts, num_rows, choice)],
        "combine and norm": [summed.combine_norm(y, of_experts, num_rows, choice, norm)],
    }
    return Layer(memory, launches, read)


def body_of(layers: Sequence[Layer], names: Sequence[str], rows: int) -> Callable[[], None]:
    launches = [(launch, one.memory.tensors) for one in layers for name in names for launch in one.launches[name]]
    prepared = [Prepared(launch, tensors, {"rows": rows}, GPU) for launch, tensors in launches]

    def body() -> None:
        for launch in prepared:
            launch(programmatic=True)

    return body


def measure(shape: str, name: str, rows: int, count: int, columns: int | None) -> None:
    """Print a line for each kernel of ``count`` layers, and one for all kernels."""
    layers = [layer(shape, FORMS[name], rows, rows, columns) for _ in range(count)]
    kernels = list(layers[0].launches)
    body_of(layers, kernels, rows)()
    torch.cuda.synchronize()
    sizes = {kernel: sum(one.read.get(kernel, 0) for one in layers) for kernel in kernels}
    for kernel in kernels:
        report(f"{name}, {rows} rows: {kernel}", timed(body_of(layers, [kernel], rows)), sizes[kernel], count)
    together = [kernel for kernel in kernels if kernel != "combine"]  # "combine_norm" replaces it
    report(f"{name}, {rows} rows: all", timed(body_of(layers, together, rows)), sum(sizes.values()), count)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="qwen3", choices=SHAPES)
    parser.add_argument("--forms", default="16")
    parser.add_argument("--rows", default="1,2,4,8,16,64,256,2048")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--columns", type=int, help="Columns of the product in a tile.")
    options = parser.parse_args()
    for name in options.forms.split(","):
        for rows in map(int, options.rows.split(",")):
            measure(options.shape, name, rows, options.layers, options.columns)


if __name__ == "__main__":
    main()
