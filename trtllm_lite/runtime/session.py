"""An engine that is loaded and ready to generate: executor, event loop, limits, tokenizer."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_lite.engine.manifest import Manifest
from trtllm_lite.errors import ArgumentError, EngineError
from trtllm_lite.runtime.batching import EventRouter
from trtllm_lite.runtime.limits import (
    RunnerLimits,
    RunnerOptions,
    available_host_memory,
    check_positive,
    runner_limits,
)
from trtllm_lite.runtime.tokenizer import Tokenizer


@dataclass
class Session:
    """What a runner runs on. Threads may share it.

    ``executor`` is a ``_core.Executor``, ``router`` shares the ``_core.EventLoop`` over it, or a stand-in of the same
    interface; ``sampling_params`` makes an empty ``_core.sampling.SamplingParams``.
    """

    manifest: Manifest
    limits: RunnerLimits
    executor: Any
    router: EventRouter
    sampling_params: Callable[[], Any]
    tokenizer: Tokenizer | None


def open_session(engine_dir: str | Path, rank: int, options: RunnerOptions) -> Session:
    """Load ``rank``'s engine of ``engine_dir``: map and check the file, reserve the KV cache, read the tokenizer.

    Raises EngineError if the directory holds no engine or a broken one, LimitError if an option exceeds the engine,
    ArgumentError if an option makes no sense.
    """
    if options.num_threads is not None:
        check_positive("num_threads", options.num_threads)
    directory = Path(engine_dir)
    engine_path = _engine_path(directory, rank)
    core = _import_core()
    engine = core.Engine(str(engine_path))
    manifest = Manifest.from_json(engine.manifest)
    limits = runner_limits(manifest.limits, manifest.kv_cache, options, available_host_memory())
    tokenizer = Tokenizer.from_dir(directory, manifest.files, core.crc32c)
    executor = core.Executor(engine, num_threads=options.num_threads or 0, num_blocks=limits.num_blocks)
    loop = core.EventLoop(
        executor,
        max_batch_size=limits.max_batch_size,
        max_input_len=limits.max_input_len,
        max_seq_len=min(limits.max_seq_len, limits.cache_len),
        max_num_tokens=limits.max_num_tokens,
    )
    return Session(
        manifest=manifest,
        limits=limits,
        executor=executor,
        router=EventRouter(loop),
        sampling_params=core.sampling.SamplingParams,
        tokenizer=tokenizer,
    )


def _import_core() -> Any:
    try:
        return importlib.import_module("trtllm_lite._core")
    except ImportError as error:
        raise EngineError(
            f"the C++ extension trtllm_lite._core does not load ({error}): install trtllm_lite again with the Python "
            "that runs it"
        ) from error


def _engine_path(directory: Path, rank: int) -> Path:
    """The engine file of ``rank``, or an EngineError that says what the directory is instead."""
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 0:
        raise ArgumentError(f"rank is {rank!r}: expected a number from 0 on")
    path = directory / f"rank{rank}.engine"
    if path.is_file():
        return path
    if not directory.exists():
        raise EngineError(f"engine directory {directory} does not exist: make it with `trtllm-lite build`")
    if not directory.is_dir():
        raise EngineError(f"{directory} is a file, expected a directory that holds {path.name}: pass its directory")
    if (directory / "network.onnx").is_file():
        raise EngineError(
            f"{directory} is a checkpoint, expected an engine: build it first with "
            f"`trtllm-lite build --checkpoint_dir {directory} --output_dir ENGINE`"
        )
    if rank and (directory / "rank0.engine").is_file():
        raise EngineError(f"{directory} has no {path.name}: this engine was built for one rank, pass rank=0")
    found = ", ".join(sorted(entry.name for entry in directory.iterdir())[:8]) or "nothing"
    raise EngineError(
        f"{directory} holds no {path.name} (found: {found}): make an engine with `trtllm-lite convert`, then "
        "`trtllm-lite build`"
    )
