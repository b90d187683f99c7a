"""Where an engine runs: the executor for its target, and how much memory there is for its KV cache."""

from dataclasses import replace
from typing import Any

from trtllm_lite.engine.manifest import Manifest, Target
from trtllm_lite.files import library_directories
from trtllm_lite.runtime.limits import RunnerOptions, available_host_memory

GPU_MEMORY_FRACTION = 0.9


def device_options(target: Target, options: RunnerOptions) -> RunnerOptions:
    """``options`` with the target's defaults: on a GPU the KV cache leaves a tenth of the free memory to others."""
    if target.kind == "cpu" or options.kv_cache.free_gpu_memory_fraction is not None:
        return options
    return replace(options, kv_cache=replace(options.kv_cache, free_gpu_memory_fraction=GPU_MEMORY_FRACTION))


def available_memory(core: Any, manifest: Manifest) -> int:
    """Bytes that the engine finds free for its KV cache, beside its weights and workspace.

    Raises DeviceError if it is for a GPU and there is none.
    """
    if manifest.target.kind == "cpu":
        return available_host_memory()
    return max(core.cuda_device_memory()["free"] - manifest.memory.weights - manifest.memory.workspace, 0)


def make_executor(core: Any, engine: Any, target: Target, *, num_threads: int, num_blocks: int) -> Any:
    """A ``_core.Executor`` or ``_core.CudaExecutor`` over ``engine``."""
    if target.kind == "cpu":
        return core.Executor(engine, num_threads=num_threads, num_blocks=num_blocks)
    return core.CudaExecutor(engine, num_blocks=num_blocks, library_directories=library_directories())
