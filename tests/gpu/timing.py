"""Times bodies of launches as CUDA graphs, and reports them against the memory's bandwidth."""

import statistics
from collections.abc import Callable

import torch

PEAK_BYTES_PER_US = 4.47e6  # reading, measured on an H200
PEAK_FLOPS_PER_US = 789e6  # cuBLAS, bf16 8192^3, measured there


def timed(body: Callable[[], None], repeats: int = 15) -> float:
    """Median microseconds of one replay of ``body`` as a CUDA graph."""
    body()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    for _ in range(3):
        graph.replay()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times)


def report(name: str, microseconds: float, num_bytes: int, count: int = 1) -> None:
    """One line: time of each of ``count`` launches, bandwidth of all, and the share of the floor reached."""
    floor = num_bytes / PEAK_BYTES_PER_US
    rate = num_bytes / microseconds / 1e6
    print(
        f"{name:50s} {microseconds / count:9.2f} us  {rate:5.2f} TB/s  floor {floor / count:8.2f} us  "
        f"{floor / microseconds:6.1%}",
        flush=True,
    )
