"""Times the kernels of mixtures of experts in the shape of Qwen3-30B-A3B, with random choices.

Layers rotate, so that no weight is cached. Floors are the bytes of the experts that were chosen.

python -m tests.gpu.bench_experts [--rows 1,8,64] [--layers 4]
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tests.gpu.device import GPU
from tests.gpu.expert_checks import Lists, Mixture, streaming
from tests.gpu.launches import H200, Prepared
from tests.gpu.memory import Memory
from tests.gpu.timing import report, timed
from trtllm_lite.plugins.cuda.grouped import GroupTiling
from trtllm_lite.plugins.cuda.weight_form import form_of
from trtllm_lite.plugins.grouped_gated_linear import cuda as gated
from trtllm_lite.plugins.grouped_linear import cuda as summed
from trtllm_lite.plugins.launch import Launch, WeightBuffers, symbol
from trtllm_lite.plugins.router import cuda as router

EXPERTS, TOP_K, HIDDEN, INNER = 128, 8, 2048, 768
DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Layer:
    """The launches of one layer by name, and what they run on."""

    memory: Memory
    launches: dict[str, Launch]
    chosen: int  # experts that some row has chosen


def layer(rows: int, max_rows: int, streamed: bool) -> Layer:
    mixture, memory = Mixture(EXPERTS, TOP_K, HIDDEN, INNER, max_rows), Memory()
    lists = Lists(mixture, memory, "cuda")
    scores = torch.randn(rows, mixture.choice.scores, device="cuda")
    both = scores.reshape(rows, 2, EXPERTS).sum(1)
    chosen = len(both.topk(TOP_K).indices.unique())

    def weight(name: str, *shape: int) -> WeightBuffers:
        return WeightBuffers(memory(name, torch.empty(shape, device="cuda", dtype=DTYPE).normal_(std=0.02)))

    def room(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda").to(DTYPE)

    gate_up, down = weight("gate_up", EXPERTS, 2, INNER, HIDDEN), weight("down", EXPERTS, HIDDEN, INNER)
    x, y = memory("x", room(max_rows, HIDDEN)), memory("y", room(max_rows, HIDDEN))
    of_scores, num_rows, choice = memory("scores", scores), symbol("rows"), mixture.choice
    last = router.Scores(of_scores, num_rows, max_rows, choice, router.Scoring("normalized_softmax"))
    if streamed:
        hidden = memory("hidden", room(max_rows, TOP_K, INNER))
        first, second = streaming(mixture, DTYPE, H200, form_of(gate_up))
        norm = memory("norm", torch.ones(HIDDEN, device="cuda")), 1e-6
        of_gated = (hidden, x, gate_up, lists.chosen, lists.shares, num_rows, first, choice)
        launches = {
            "choose": router.choose(lists.ids, lists.shares, lists.chosen, last),
            "gated": gated.stream(*of_gated, activation="silu", norm=norm),
            "summed": summed.stream(y, hidden, down, lists.chosen, num_rows, second, choice, x),
        }
        return Layer(memory, launches, chosen)
    count, group_rows = max_rows * TOP_K, choice.group_rows(max_rows)
    how = GroupTiling("bfloat16", H200, choice, count, group_rows)
    hidden = memory("hidden", room(count, INNER))
    rows_of_x, results = memory("sx", room(count, HIDDEN)), memory("sy", room(count, HIDDEN))
    launches = {
        "sort": router.sort(*lists.places, lists.shares, lists.groups, lists.counts, last),
        "rows": gated.sort_rows(rows_of_x, x, *lists.places, num_rows, choice),
        "gated": gated.tiled(hidden, rows_of_x, gate_up, lists.groups, how, activation="silu"),
        "summed": summed.tiled(results, hidden, down, lists.groups, how),
        "combine": summed.combine(y, results, *lists.places, lists.shares, num_rows, choice, x),
    }
    return Layer(memory, launches, chosen)


def body_of(layers: Sequence[Layer], names: Sequence[str], rows: int) -> Callable[[], None]:
    launches = [(one.launches[name], one.memory.tensors) for one in layers for name in names]
    prepared = [Prepared(launch, tensors, {"rows": rows}, GPU) for launch, tensors in launches]

    def body() -> None:
        for launch in prepared:
            launch(programmatic=True)

    return body


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default="1,2,4,8,16,64,256,2048")
    parser.add_argument("--layers", type=int, default=4)
    options = parser.parse_args()
    for rows in map(int, options.rows.split(",")):
        streamed = rows <= 16
        layers = [layer(rows, rows, streamed) for _ in range(options.layers)]
        body_of(layers, list(layers[0].launches), rows)()
        torch.cuda.synchronize()
        matrix = 2 * HIDDEN * INNER * sum(one.chosen for one in layers)
        sizes = {"gated": 2 * matrix, "summed": matrix}
        for name in layers[0].launches:
            time = timed(body_of(layers, [name], rows))
            report(f"{rows} rows: {name}", time, sizes.get(name, 0), options.layers)
        time = timed(body_of(layers, list(layers[0].launches), rows))
        report(f"{rows} rows: all", time, 3 * matrix, options.layers)
        del layers


if __name__ == "__main__":
    main()
