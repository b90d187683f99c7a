"""Times AllReduce with residual and norm on several GPUs, in graphs, against the link's measured bandwidth.

python -m tests.gpu.bench_collectives [FILE.json]
"""

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from tests.gpu.cards import Gpus
from tests.gpu.collectives import PUSH, STORED, AllReduce
from tests.gpu.ranks import Rank

ROWS = (1, 8, 64, 128, 256, 512, 1024, 2048, 8192)
HIDDEN = (4096, 8192)
IN_GRAPH = 32


def timed(ranks: AllReduce, cards: Gpus, launch: Callable[[Rank], None], repeats: int = 15) -> float:
    """Median microseconds of one of ``IN_GRAPH`` launches in a graph that all cards run."""
    graphs = []
    ranks.run(launch)
    for rank, stream in zip(ranks.ranks, cards.streams, strict=True):
        graphs.append(torch.cuda.CUDAGraph())
        with cards.on(rank.number), torch.cuda.graph(graphs[-1], stream=stream, capture_error_mode="thread_local"):
            for _ in range(IN_GRAPH):
                launch(rank)
    last, times = ranks.ranks[-1], []  # the last rank begins last
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for rank, graph in zip(ranks.ranks, graphs, strict=True):
            with cards.on(rank.number):
                if rank is last:
                    begin.record()
                graph.replay()
                graph.replay()
                if rank is last:
                    end.record()
        ranks.finish()
        times.append(begin.elapsed_time(end) * 1e3 / (2 * IN_GRAPH))
    return statistics.median(times)


def read_rate(cards: Gpus) -> float:
    """GB/s at which each card copies from the next one's memory while all cards do."""
    num_bytes, repeats, events = 256 << 20, 16, []
    buffers = [torch.empty(2, num_bytes, device=f"cuda:{number}", dtype=torch.uint8) for number in range(cards.count)]
    cards.synchronize()
    for number in range(cards.count):
        with cards.on(number):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(repeats):
                buffers[number][0].copy_(buffers[(number + 1) % cards.count][1])
            end.record()
            events.append((begin, end))
    cards.synchronize()
    return min(num_bytes * repeats / begin.elapsed_time(end) / 1e6 for begin, end in events)


def all_reduce(ranks: AllReduce, cards: Gpus, rows: int) -> dict[str, int | float | str]:
    """The time of AllReduce as engines run it, without the preceding products, which store rows on their owners."""
    name = PUSH if rows <= ranks.inbox_rows else STORED
    microseconds = timed(ranks, cards, lambda rank: ranks.launch(name, rank, rows))
    sent = 2 * rows * ranks.hidden * (cards.count - 1) / (1 if name == PUSH else cards.count)
    rate = sent / microseconds / 1e3
    print(f"{rows:6d} rows of {ranks.hidden}: {name} {microseconds:8.2f} us  {rate:6.1f} GB/s", flush=True)
    return {"hidden": ranks.hidden, "rows": rows, "microseconds": microseconds, "way": name}


def main() -> None:
    found, cards = [], Gpus()
    for hidden in HIDDEN:
        ranks = AllReduce(cards, hidden, max(ROWS), torch.bfloat16, norm=True)
        for rank in ranks.ranks:
            for name in ("x", "residual"):
                rank[name].fill_(0.5)
        cards.synchronize()
        found += [all_reduce(ranks, cards, rows) for rows in ROWS]
    rate = read_rate(cards)
    print(f"a copy from the next card: {rate:.0f} GB/s")
    if len(sys.argv) > 1:
        report = {"gpu": torch.cuda.get_device_name(0), "ranks": cards.count, "copy_gb_per_s": rate, "times": found}
        Path(sys.argv[1]).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
