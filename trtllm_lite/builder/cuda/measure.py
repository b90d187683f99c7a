"""Measures, on this machine's GPU, which cuBLASLt algorithm is fastest for each product of an engine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from trtllm_lite import _core
from trtllm_lite.builder.cuda.timing_cache import FORMAT_VERSION, ProductTiming, TimingCache
from trtllm_lite.engine.records import from_json
from trtllm_lite.files import library_directories

# Captured decode steps run at sizes like the first, prefill at any: between two of these, cuBLASLt's cost is linear.
_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192, 16384)


def measure(engine_file: Path, arch: str, max_tokens: int, progress: Callable[[int, int], None]) -> TimingCache:
    """Load the engine, whose weights may be missing, and time its products for up to ``max_tokens`` rows.

    Raises DeviceError if there is no GPU, EngineError if it is of another architecture.
    """
    engine = _core.Engine(str(engine_file))
    executor = _core.CudaExecutor(engine, num_blocks=1, library_directories=library_directories())
    cache = TimingCache(FORMAT_VERSION, executor.device_name, arch, executor.cublaslt_version, ())
    wanted = [rows for rows in _ROWS if rows < max_tokens] + [max_tokens]
    for done, rows in enumerate(wanted):
        progress(done, len(wanted))
        cache = cache.merged(_timing(entry) for entry in executor.time_products(num_tokens=rows))
    progress(len(wanted), len(wanted))
    return cache


def _timing(entry: dict[str, Any]) -> ProductTiming:
    """An entry of the executor, whose keys are those of both records."""
    own = {key: entry.pop(key) for key in ("rows", "algo", "microseconds", "heuristic_microseconds")}
    own |= {key: round(own[key], 2) for key in ("microseconds", "heuristic_microseconds")}
    return from_json(ProductTiming, {"product": entry, **own}, "timing")
