"""Builds engines for NVIDIA GPUs: compiled kernels and matrix products, tuned by measurements if there are any."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx_ir as ir

from trtllm_lite import _core
from trtllm_lite.builder.cache_dtype import AUTO_DTYPE
from trtllm_lite.builder.cuda.engine import cuda_memory, cuda_parts, parts_of
from trtllm_lite.builder.cuda.products.measure import FAST, THOROUGH, measure_algorithms, measure_tuning_tasks
from trtllm_lite.builder.cuda.products.packaged import packaged_timings
from trtllm_lite.builder.cuda.products.timing_cache import TimingCache, load_timing_cache, require_output
from trtllm_lite.builder.cuda.products.tuning_tasks import lower_tuning_tasks
from trtllm_lite.builder.cuda.targets import parse_targets
from trtllm_lite.builder.job import BuildJob, Fused, Tuning
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.builder.memory import MemoryPlan
from trtllm_lite.builder.parts import EngineParts, content_of, manifest_of
from trtllm_lite.builder.pipeline import fuse_into_plugins
from trtllm_lite.common.vocabulary import KV_CACHE_DTYPES, ON_GPU
from trtllm_lite.engine.format import ENGINE_FILE
from trtllm_lite.engine.writer import write_engine
from trtllm_lite.errors import BuildError, DeviceError, shown
from trtllm_lite.network.config import ModelConfig


class CudaBackend:
    """The targets ``sm_80`` to ``sm_121``."""

    kind = "cuda"
    defaults = ON_GPU

    def accepts(self, target: str) -> bool:
        """Implements :meth:`Backend.accepts`."""
        return target.startswith("sm_")

    def check(self, targets: Sequence[str], strip_plan: bool, tuning: Tuning) -> None:
        """Implements :meth:`Backend.check`."""
        del strip_plan
        devices = parse_targets(targets)
        if tuning.output_timing_cache is None:
            if tuning.fast_build:
                raise BuildError(
                    "fast_build is given, and nothing is measured: leave fast_build out, or pass output_timing_cache"
                )
            return
        if len(devices) != 1:
            archs = ", ".join(device.arch for device in devices)
            raise BuildError(f"output_timing_cache is given for the targets {archs}: pass only this GPU's target")
        require_output(tuning.output_timing_cache)
        try:
            _core.cuda_device_memory()
        except DeviceError as error:
            raise BuildError(
                f"output_timing_cache measures on the GPU of this machine: {error}; leave it out without a GPU"
            ) from error

    def fuse(self, network: ir.Model, config: ModelConfig, kv_cache_dtype: str, limits: BuildLimits) -> Fused:
        """Implements :meth:`Backend.fuse`."""
        del config
        return fuse_into_plugins(network, kv_cache_dtype, limits)

    def compile(self, ranks: Sequence[BuildJob]) -> list[EngineParts]:
        """Implements :meth:`Backend.compile`; measurements of the first rank serve all ranks, as shapes are equal."""
        job, graphs = ranks[0], [rank.graph for rank in ranks]
        _check_cache(job)
        tuning, devices = job.tuning, parse_targets(job.targets)
        given = None if tuning.input_timing_cache is None else load_timing_cache(tuning.input_timing_cache)
        if tuning.output_timing_cache is not None:
            given = _measure(job, given)
            given.save(tuning.output_timing_cache)
        timings = packaged_timings(devices) if given is None else given
        kind, dtype = job.checkpoint.kind.name, job.checkpoint.config.dtype
        progress = partial(job.report, "compile")
        return cuda_parts(graphs, kind, dtype, job.limits, devices, progress, timings, must_know=given is not None)

    def memory(self, job: BuildJob, num_threads: int | None) -> MemoryPlan:
        """Implements :meth:`Backend.memory`; ``num_threads`` counts CPU threads and is ignored."""
        del num_threads
        _check_cache(job)
        kind, dtype = job.checkpoint.kind.name, job.checkpoint.config.dtype
        return cuda_memory(job.graph, kind, dtype, job.limits, parse_targets(job.targets))


def _check_cache(job: BuildJob) -> None:
    """Raise BuildError for a KV cache of a type that the kernels do not read."""
    dtype = job.checkpoint.config.dtype
    if job.kv_cache_dtype not in (AUTO_DTYPE, dtype, *KV_CACHE_DTYPES.values()):
        raise BuildError(
            f"the KV cache is to be {shown(job.kv_cache_dtype)}, and the GPU kernels keep keys and values in the type "
            f"of activations, as fp8 or as int8: build with --kv_cache_dtype {dtype}, fp8 or int8"
        )
    if job.key_cache_dtype not in (AUTO_DTYPE, dtype):
        raise BuildError(
            f"keys are to be {job.key_cache_dtype}, and the GPU kernels keep keys beside values in 8 bits in the type "
            f"of activations: build with --key_cache_dtype {dtype}"
        )


def _measure(job: BuildJob, known: TimingCache | None) -> TimingCache:
    """Time the candidate kernels of each product on this machine's GPU, in engines that do nothing else."""
    effort = FAST if job.tuning.fast_build else THOROUGH
    (device,) = parse_targets(job.targets)
    kind, dtype = job.checkpoint.kind.name, job.checkpoint.config.dtype
    lowered, tasks = lower_tuning_tasks(job.graph, kind, dtype, job.limits, device, effort.max_candidates)

    def make(directory: str, timings: TimingCache | None) -> Path:
        parts = parts_of(lowered, partial(job.report, "compile"), timings)
        engine = Path(directory) / ENGINE_FILE
        write_engine(engine, content_of(parts, manifest_of(replace(job, strip_plan=True), parts, {})))
        return engine

    progress = partial(job.report, "measure")
    with TemporaryDirectory() as directory:
        cache = measure_algorithms(make(directory, None), device.arch, job.limits.num_tokens, effort, known, progress)
    with TemporaryDirectory() as directory:
        return cache.merged((), measure_tuning_tasks(make(directory, cache), tasks, effort, progress))
