"""Timing caches that make a build choose what a test needs."""

from pathlib import Path

import onnx_ir as ir

from trtllm_lite.builder import BuildLimits
from trtllm_lite.builder.checkpoint import open_checkpoint
from trtllm_lite.builder.cuda.products.timing_cache import CUBLASLT, FORMAT_VERSION, KernelTiming, TimingCache
from trtllm_lite.builder.cuda.products.tuning_tasks import lower_tuning_tasks
from trtllm_lite.builder.cuda.targets import parse_targets
from trtllm_lite.builder.pipeline import run_passes
from trtllm_lite.common.vocabulary import DECODER
from trtllm_lite.plugins.launch import Device


def tiles_first(graph: ir.Graph, dtype: str, limits: BuildLimits, device: Device) -> TimingCache:
    """A cache that prefers tiled kernels, which differ by the product's size, for products of more than a few rows.

    ``graph`` holds fused operators only.
    """
    _, tasks = lower_tuning_tasks(graph, DECODER, dtype, limits, device, max_candidates=4)
    timings = []
    for number, task in enumerate(tasks):
        tiled = [kernel for kernel in task.programs if kernel != CUBLASLT]
        fastest = tiled[number % len(tiled)]
        times = {next(iter(task.programs)): 2.0} | {fastest: 1.0}
        timings += [KernelTiming(task.product, task.max_rows, kernel, time) for kernel, time in times.items()]
    return TimingCache(FORMAT_VERSION, "Test GPU", device.arch, 0, (), tuple(timings))


def save_tiles_first(checkpoint_dir: Path, path: Path, **limits: int) -> Path:
    """Write ``path``, which prefers tiled kernels for an engine of the checkpoint with these limits on an H200."""
    checkpoint = open_checkpoint(checkpoint_dir)
    model, _ = run_passes(checkpoint.model)
    (device,) = parse_targets(["sm_90"])
    tiles_first(model.graph, checkpoint.config.dtype, BuildLimits(**limits), device).save(path)
    return path
