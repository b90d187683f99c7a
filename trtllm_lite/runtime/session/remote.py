"""Opens the stages of an engine in other processes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trtllm_lite.engine.manifest import Manifest
from trtllm_lite.errors import ArgumentError
from trtllm_lite.runtime.session.limits import RunnerOptions


def check_remote(manifest: Manifest, options: RunnerOptions) -> None:
    """Raise ArgumentError if other processes cannot run the engine with these options."""
    given = f"distributed_executor_backend is {options.distributed_executor_backend}, and "
    if manifest.target.kind != "cpu":
        raise ArgumentError(f"{given}only stages of engines for CPUs run in processes of their own yet: leave it out")
    if manifest.lora is not None:
        raise ArgumentError(f"{given}adapters are kept in one process: leave it out, or max_lora_rank")
    if options.speculation is not None and options.speculation.model is not None:
        raise ArgumentError(f"{given}draft models run beside an engine in its process: guess with the method ngram")


def all_manifests(directory: Path, manifest: Manifest) -> list[Manifest]:
    """The manifests of all ranks of an engine, given the first. Raises EngineError if a file is not there or broken.

    The weights are not read: each is checked where it computes.
    """
    from trtllm_lite.engine.reader import read_engine  # not before: it needs the C++ extension

    return [manifest, *(read_engine(directory / name).manifest for name in manifest.engine_files[1:])]


def open_stages(files: Sequence[Path], manifest: Manifest, num_blocks: int, num_threads: int | None) -> Any:
    """The stages of an engine as actors of Ray, for ``_core.RemoteStages``.

    Raises ArgumentError if Ray is not installed, DeviceError if its cluster has too few CPUs, or a stage does not load.
    """
    try:  # other engines do not need it
        from trtllm_lite.runtime.ray.stages import Stages
    except ModuleNotFoundError as error:
        raise ArgumentError(
            f"distributed_executor_backend is ray, which needs {error.name}: pip install 'trtllm_lite[ray]'"
        ) from error
    return Stages(files, manifest.mapping, num_blocks, num_threads)
