"""Times AllReduce with residual and norm on several GPUs, in graphs, against the link's measured bandwidth.

python -m tests.gpu.bench_collectives [FILE.json]
"""

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from tests.gpu.collectives import Rank, Ranks
from trtllm_lite.plugins.cuda.ranks import inbox_rows

ROWS = (1, 8, 64, 128, 256, 512, 1024, 2048, 8192)
HIDDEN = (4096, 8192)
IN_GRAPH = 32


def timed(ranks: Ranks, launch: Callable[[Rank], None], repeats: int = 15) -> float:
    """Median microseconds of one of ``IN_GRAPH`` launches of a graph that all cards run."""
    graphs = []
    ranks.run(launch)
    for rank in ranks.ranks:
        graphs.append(torch.cuda.CUDAGraph())
        with rank.on_card, torch.cuda.graph(graphs[-1], stream=rank.stream, capture_error_mode="thread_local"):
            for _ in range(IN_GRAPH):
                launch(rank)
    last, times = ranks.ranks[-1], []  # the last one begins last
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for rank, graph in zip(ranks.ranks, graphs, strict=True):
            with rank.on_card, torch.cuda.stream(rank.stream):
                if rank is last:
                    begin.record()
                graph.replay()
                graph.replay()
                if rank is last:
                    end.record()
        ranks.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / (2 * IN_GRAPH))
    return statistics.median(times)


def read_rate(ranks: Ranks) -> float:
    """GB/s that each card copies from the next one's memory while all do."""
    num_bytes, repeats, events = 256 << 20, 16, []
    buffers = [torch.empty(2, num_bytes, device=f"cuda:{rank.number}", dtype=torch.uint8) for rank in ranks.ranks]
    for rank in ranks.ranks:
        with rank.on_card:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(repeats):
                buffers[rank.number][0].copy_(buffers[(rank.number + 1) % ranks.count][1])
            end.record()
            events.append((begin, end))
    ranks.synchronize()
    return min(num_bytes * repeats / begin.elapsed_time(end) / 1e6 for begin, end in events)


def all_reduce(ranks: Ranks, rows: int) -> dict[str, int | float | str]:
    """The time of AllReduce as engines compute it."""
    name = "push" if rows <= inbox_rows(ranks.count) else "pull"
    microseconds = timed(ranks, lambda rank: ranks.launch(name, rank, rows, True))
    rate = 2 * rows * ranks.hidden * (ranks.count - 1) / microseconds / 1e3
    print(f"{rows:6d} rows of {ranks.hidden}: {name} {microseconds:8.2f} us  {rate:6.1f} GB/s", flush=True)
    return {"hidden": ranks.hidden, "rows": rows, "microseconds": microseconds, "way": name}


def main() -> None:
    found = []
    for hidden in HIDDEN:
        ranks = Ranks(hidden, max(ROWS), torch.bfloat16)
        for rank in ranks.ranks:
            rank.arena.fill_(0.5)
            rank.residual.fill_(0.5)
        found += [all_reduce(ranks, rows) for rows in ROWS]
    rate = read_rate(ranks)
    print(f"a copy from the next card: {rate:.0f} GB/s")
    if len(sys.argv) > 1:
        report = {"gpu": torch.cuda.get_device_name(0), "ranks": ranks.count, "copy_gb_per_s": rate, "times": found}
        Path(sys.argv[1]).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
