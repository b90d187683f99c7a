"""Measures on this machine's GPU which algorithm or kernel computes each product of an engine fastest."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from trtllm_lite import _core
from trtllm_lite.builder.cuda.limits import LARGEST_STEP, STEP_BUCKETS
from trtllm_lite.builder.cuda.products.timing_cache import FORMAT_VERSION, KernelTiming, ProductTiming, TimingCache
from trtllm_lite.builder.cuda.products.tuning_tasks import TuningTask
from trtllm_lite.common.files import library_directories
from trtllm_lite.engine.records import from_json

# Number of rows from which on a card runs at its power limit, where the candidate that takes the least energy is
# fastest.
_POWER_LIMITED_ROWS = 256
_REPEATS, _SUSTAINED_REPEATS = 7, 2


@dataclass(frozen=True)
class Effort:
    """The amount of measuring.

    ``rows``: numbers of rows for which up to ``max_algorithms`` algorithms of cuBLASLt are timed; between two such
    numbers, the time of cuBLASLt is interpolated linearly. ``tuned_rows``: numbers of rows for which up to
    ``max_candidates`` tiled kernels are compared with cuBLASLt. ``sustained``: large products are timed for as long as
    it takes a GPU to settle at its power limit.
    """

    rows: tuple[int, ...]
    max_algorithms: int
    tuned_rows: tuple[int, ...]
    max_candidates: int
    sustained: bool


# Captured decode steps have about as many rows as the smaller numbers here, prefill steps have any number.
THOROUGH = Effort(
    rows=(1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 128, 192, 256, 320, 384, 512, 1024, 2048, 4096, 8192, 16384),
    max_algorithms=24,
    tuned_rows=(32, 64, 80, 128, 192, 256, 320, 384, 512, 1024, 2048, 8192),
    max_candidates=6,
    sustained=True,
)
FAST = Effort(
    rows=(8, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192),
    max_algorithms=16,
    tuned_rows=(*STEP_BUCKETS, LARGEST_STEP),
    max_candidates=2,
    sustained=False,
)
Progress = Callable[[int, int], None]


def measure_algorithms(
    engine_file: Path, arch: str, max_tokens: int, effort: Effort, known: TimingCache | None, progress: Progress
) -> TimingCache:
    """Load the engine, whose weights may be missing, and time cuBLASLt's algorithms for up to ``max_tokens`` rows.

    Returns the new and the ``known`` timings together. Raises BuildError if the known ones are of another card or
    version of cuBLASLt, DeviceError if there is no GPU, or one of another architecture.
    """
    executor = _executor(engine_file)
    cache = TimingCache(FORMAT_VERSION, executor.device_name, arch, executor.cublaslt_version, (), ())
    if known is not None:
        cache = cache.merged_with(known)
    wanted = [rows for rows in effort.rows if rows < max_tokens] + [max_tokens]
    for done, (above, rows) in enumerate(pairwise([0, *wanted])):
        progress(done, len(wanted))
        entries = executor.time_products(
            num_tokens=rows, above=above, candidates=effort.max_algorithms, **_arguments(effort, rows)
        )
        cache = cache.merged(_product_timing(entry) for entry in entries)
    progress(len(wanted), len(wanted))
    return cache


def measure_tuning_tasks(
    engine_file: Path, tasks: Iterable[TuningTask], effort: Effort, progress: Progress
) -> list[KernelTiming]:
    """Time the candidates of ``tasks`` in an engine that has a program for each candidate. Raises DeviceError."""
    executor = _executor(engine_file)
    rounds = [(task, rows) for task in tasks for rows in effort.tuned_rows if task.above < rows <= task.max_rows]
    timings = []
    for done, (task, rows) in enumerate(rounds):
        progress(done, len(rounds))
        times = executor.time_programs(list(task.programs.values()), num_tokens=rows, **_arguments(effort, rows))
        timings += [
            KernelTiming(task.product, rows, kernel, round(time / task.num_layers, 2))
            for kernel, time in zip(task.programs, times, strict=True)
            if time is not None
        ]
    progress(len(rounds), len(rounds))
    return timings


def _executor(engine_file: Path) -> _core.CudaExecutor:
    return _core.CudaExecutor(_core.Engine(str(engine_file)), num_blocks=1, library_directories=library_directories())


def _arguments(effort: Effort, rows: int) -> dict[str, Any]:
    sustained = effort.sustained and rows >= _POWER_LIMITED_ROWS
    return {"sustained": sustained, "repeats": _SUSTAINED_REPEATS if sustained else _REPEATS}


def _product_timing(entry: dict[str, Any]) -> ProductTiming:
    """Make a timing from an entry of the executor, whose keys are fields of ProductTiming and of Product."""
    own = {key: entry.pop(key) for key in ("rows", "algo", "microseconds", "heuristic_microseconds")}
    own |= {key: round(own[key], 2) for key in ("microseconds", "heuristic_microseconds")}
    return from_json(ProductTiming, {"product": entry, **own}, "timing")
