"""Times bodies of launches as CUDA graphs, and reports them against the memory's bandwidth."""

import statistics
from collections.abc import Callable

import torch

PEAK_BYTES_PER_US = 4.47e6  # reading, measured on an H200
PEAK_FLOPS_PER_US = 789e6  # cuBLAS, bf16 8192^3, measured there


def _captured(body: Callable[[], None]) -> torch.cuda.CUDAGraph:
    body()  # work of the first call is not captured
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    return graph


def timed(body: Callable[[], None], repeats: int = 15) -> float:
    """Median microseconds of one replay of ``body`` as a CUDA graph."""
    graph = _captured(body)
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


def sustained(body: Callable[[], None], seconds: float) -> float:
    """Mean microseconds of a replay of ``body``, in the second half of ``seconds`` seconds of replays."""
    graph = _captured(body)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    half = max(2, int(seconds * 500 / begin.elapsed_time(end)))
    for replay in range(2 * half):
        if replay == half:
            begin.record()
        graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / half


def report(name: str, microseconds: float, num_bytes: int, count: int = 1) -> None:
    """Print a line: time of each of ``count`` launches, bandwidth of all, and the share of the floor reached."""
    floor = num_bytes / PEAK_BYTES_PER_US
    rate = num_bytes / microseconds / 1e6
    print(
        f"{name:50s} {microseconds / count:9.2f} us  {rate:5.2f} TB/s  floor {floor / count:8.2f} us  "
        f"{floor / microseconds:6.1%}",
        flush=True,
    )
