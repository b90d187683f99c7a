"""Opens the stages of an engine in other processes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trtllm_lite.common.files import library_directories
from trtllm_lite.engine.manifest import Manifest
from trtllm_lite.errors import ArgumentError
from trtllm_lite.runtime.core import core
from trtllm_lite.runtime.remote.engine_files import Digests, stages_of
from trtllm_lite.runtime.remote.gpu_stage import named_gpus
from trtllm_lite.runtime.remote.gpu_stages import GpuStages
from trtllm_lite.runtime.remote.processes import StageProcesses
from trtllm_lite.runtime.session.limits import RunnerLimits, RunnerOptions


def check_remote(manifest: Manifest, options: RunnerOptions) -> None:
    """Raise ArgumentError if other processes cannot run the engine with these options."""
    given = f"distributed_executor_backend is {options.distributed_executor_backend}, and "
    kind, mapping = manifest.target.kind, manifest.mapping
    if kind == "tensorrt":
        raise ArgumentError(f"{given}engines of TensorRT have no stages: leave it out")
    if kind == "cuda" and mapping.pp_size == 1:
        raise ArgumentError(
            f"{given}a GPU engine with one stage runs in this process: leave it out, or build an engine of several "
            "stages (--pp_size of `trtllm-lite build`, pipeline_parallel_size of LLM)"
        )
    if manifest.lora is not None:
        raise ArgumentError(f"{given}adapters are kept in one process: leave out either this option or max_lora_rank")
    if options.speculation is not None and options.speculation.model is not None:
        raise ArgumentError(f"{given}draft models run beside an engine in its process: draft with the method ngram")
    devices = options.device_ids
    if devices is not None and not len(devices) == len(set(devices)) == mapping.tp_size:
        raise ArgumentError(
            f"{given}device_ids are the GPUs of the last stage, which computes in this process: expected "
            f"{mapping.tp_size} different ones, found {len(devices)}, {len(set(devices))} of them different"
        )


def all_manifests(directory: Path, manifest: Manifest) -> list[Manifest]:
    """The manifests of all ranks of an engine, given the first. Raises EngineError if a file is missing or broken.

    Weights are not read: each process checks its own.
    """
    from trtllm_lite.engine.reader import read_engine  # imported here, because it needs the C++ extension

    return [manifest, *(read_engine(directory / name).manifest for name in manifest.engine_files[1:])]


def open_stages(directory: Path, manifest: Manifest, num_blocks: int, num_threads: int | None) -> Any:
    """Run the stages of an engine for CPUs as Ray actors, for ``_core.RemoteStages``.

    Raises ArgumentError if Ray is not installed, DeviceError if its cluster has too few CPUs, or if a stage does not
    load.
    """
    try:  # other engines do not need Ray
        from trtllm_lite.runtime.ray.stages import Stages
    except ModuleNotFoundError as error:
        raise _needs(error) from error
    return Stages(_files(directory, manifest), manifest.mapping, num_blocks, num_threads)


def start_gpu_stages(directory: Path, manifest: Manifest) -> GpuStages:
    """Start processes for all stages but the last of an engine for GPUs; nothing is loaded yet.

    Raises ArgumentError if Ray is not installed, DeviceError if NCCL is not installed or the cluster has too few GPUs.
    """
    core().nccl_ids(0, library_directories())  # raises without NCCL, before anything is loaded
    stages = stages_of(_files(directory, manifest), manifest.mapping)
    return GpuStages(processes_of(stages[:-1]), manifest.mapping)


def processes_of(stages: Sequence[Digests]) -> StageProcesses:
    """Start a Ray actor for each of ``stages``."""
    try:
        from trtllm_lite.runtime.ray.gpu_actors import GpuActors
    except ModuleNotFoundError as error:
        raise _needs(error) from error
    return GpuActors(stages)


def open_last_stage(
    native: Any,
    directory: Path,
    manifest: Manifest,
    stages: GpuStages,
    limits: RunnerLimits,
    device_ids: Sequence[int] | None,
) -> Any:
    """Open a ``_core.LastStage`` on this process's GPUs, connected with the others, which load their engines meanwhile.

    Raises EngineError, DeviceError, LimitError.
    """
    devices = list(device_ids or range(manifest.mapping.tp_size))
    stages.check_apart(named_gpus(devices))
    stages.load(limits.num_blocks, limits.num_host_blocks)
    files = _files(directory, manifest)[-manifest.mapping.tp_size :]
    engines = [native.Engine(str(path)) for path in files]
    last = native.LastStage(
        engines,
        stages,
        devices=devices,
        num_blocks=limits.num_blocks,
        library_directories=library_directories(),
        rank_timeout=stages.rank_seconds,
    )
    stages.connect(last, engines[0])
    return last


def _files(directory: Path, manifest: Manifest) -> list[Path]:
    return [directory / name for name in manifest.engine_files]


def _needs(error: ModuleNotFoundError) -> ArgumentError:
    return ArgumentError(
        f"distributed_executor_backend is ray, which needs {error.name}: pip install 'trtllm_lite[ray]'"
    )
