"""Defines a stage of an engine for GPUs, which runs in a process of its own."""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.common.files import library_directories
from trtllm_lite.runtime.core import core
from trtllm_lite.runtime.remote.engine_files import Digests, check_files

# num_tokens, num_seqs, num_decode_seqs, num_decode_tokens, num_logits, and whether the step is decode-only.
Shape = tuple[int, int, int, int, int, bool]


@dataclass(frozen=True)
class Facts:
    """Facts about a loaded stage that the last stage needs."""

    pid: int
    memory: dict[str, int]


class GpuStage:
    """The engines of a stage's ranks, on the first GPUs that the process sees.

    One thread makes the calls, in order; other threads call :meth:`watch` and :meth:`has_ended` meanwhile.
    """

    def __init__(self, digests: Digests) -> None:
        """Check the files without loading them. Raises EngineError if a file differs here."""
        check_files(digests)
        self._paths = list(digests)
        self._engines: list[Any] = []
        self._worker: Any = None
        self._gpus: list[Any] = []  # kept until the engines are loaded

    def free_memory(self) -> list[int]:
        """Free bytes of each rank's GPU. Raises DeviceError if there are too few GPUs."""
        self._gpus = [core().GpuContext(device) for device in range(len(self._paths))]
        return [gpu.free_memory for gpu in self._gpus]

    def gpus(self) -> list[str]:
        """See :func:`named_gpus`."""
        return named_gpus(range(len(self._paths)))

    def load(self, num_blocks: int, num_host_blocks: int, rank_timeout: float) -> Facts:
        """Load the engines. Raises EngineError, DeviceError, LimitError as ``_core.StageWorker`` does."""
        native = core()
        self._engines = [native.Engine(str(path)) for path in self._paths]
        self._worker = native.StageWorker(
            self._engines,
            devices=list(range(len(self._engines))),
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
            library_directories=library_directories(),
            rank_timeout=rank_timeout,
        )
        self._gpus = []
        return Facts(os.getpid(), self._worker.memory)

    def connect(self, ids: Sequence[bytes]) -> None:
        """Connect the ranks with those of other stages, which connect at the same time. Raises DeviceError."""
        self._worker.connect(self._engines[0], list(ids), library_directories())

    def capture(self, shape: Shape, inputs: NDArray[np.uint8]) -> None:
        """Capture the CUDA graph of a step of ``shape``. Raises LimitError, DeviceError."""
        self._worker.capture(shape, inputs)

    def step(self, number: int, copies: NDArray[np.int32], shape: Shape, inputs: NDArray[np.uint8]) -> None:
        """Enqueue a step on the CUDA streams; :meth:`watch` reports a failure."""
        self._worker.step(number, copies, shape, inputs)

    def watch(self) -> None:
        """Wait until the stage fails. Raises DeviceError."""
        self._worker.watch()

    def has_ended(self, number: int) -> bool:
        """Whether the step ``number`` has ended."""
        return bool(self._worker.has_ended(number))


def named_gpus(devices: Sequence[int]) -> list[str]:
    """Names, unique among all machines, of the GPUs that have the numbers ``devices`` in this process."""
    machine = f"{socket.gethostname()} ({Path('/proc/sys/kernel/random/boot_id').read_text().strip()})"
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return [f"{visible[device] if device < len(visible) else device} of {machine}" for device in devices]
