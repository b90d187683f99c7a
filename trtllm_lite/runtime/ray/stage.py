"""Defines a stage of an engine, which runs in a Ray actor."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.runtime.core import core
from trtllm_lite.runtime.remote.engine_files import Digests, check_files

# Copies of KV cache blocks (source, destination) to make before anything else.
Copies = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Facts:
    """Facts about a stage that the driver needs when the stage is ready."""

    pid: int
    block_bytes: int
    memory: dict[str, int]


class Stage:
    """The engines of a stage's ranks, in a separate process. Calls come in the order of steps."""

    def __init__(self, digests: Digests, num_blocks: int, num_threads: int) -> None:
        """Load the engines of ``digests``.

        Raises EngineError if a file is missing or differs, LimitError if there is too little memory.
        """
        check_files(digests)
        native = core()
        self._step = native.step_stage
        self._executor = native.open_stage(
            [native.Engine(str(path)) for path in digests], num_blocks=num_blocks, num_threads=num_threads
        )

    def facts(self) -> Facts:
        """The facts about this stage; a result also means that the stage is ready."""
        return Facts(os.getpid(), self._executor.block_bytes, self._executor.memory)

    def step(self, copies: Copies, request: Sequence[NDArray[np.int32]], received: Any = None) -> NDArray[Any]:
        """Carry out a step on the values ``received`` from the previous stage.

        The result is the input of the next stage, or the logits.
        """
        self._copy(copies)
        return self._step(self._executor, *request, np.empty(0, np.uint8) if received is None else received)

    def save_block(self, copies: Copies, block: int) -> NDArray[np.uint8]:
        """The content of a block of the KV cache."""
        self._copy(copies)
        return self._executor.save_block(block)

    def load_block(self, copies: Copies, block: int, data: NDArray[np.uint8]) -> None:
        """Write a block that :meth:`save_block` returned."""
        self._copy(copies)
        self._executor.load_block(block, data)

    def _copy(self, copies: Copies) -> None:
        for source, to in copies:
            self._executor.copy_block(source, to)
