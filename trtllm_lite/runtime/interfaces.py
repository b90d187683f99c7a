"""Interfaces of the Python objects that the C++ runtime calls: a network, and stages in other processes."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Network(Protocol):
    """Interface of the network of an engine that another library compiled; Python provides it.

    Each sequence has a row of the caches. Exceptions other than LimitError become a DeviceError.
    """

    memory: dict[str, int]
    """Reserved bytes: ``weights``, ``kv_cache``, ``workspace``."""

    def step(
        self,
        generation: bool,
        first_row: int,
        past_lens: NDArray[np.int32],
        token_ids: NDArray[np.int32],
        logits_indices: NDArray[np.int32],
        outputs: NDArray[np.int32],
        logits: NDArray[np.float32],
    ) -> None:
        """Append ``token_ids`` [rows, seq] to the sequences of cache rows from ``first_row`` on.

        ``rows`` is 1; with ``generation``, ``seq`` is 1 instead. The caches hold ``past_lens`` [rows] tokens already.
        ``logits_indices`` has one or more positions in the flat token_ids; the logits after these tokens go to the
        rows ``outputs`` of ``logits`` [any, vocab_size], unless ``outputs`` is empty.
        """

    def copy_row(self, source: int, to: int) -> None:
        """Copy a row of all caches to another."""

    def save_row(self, row: int, out: NDArray[np.uint8]) -> None:
        """Write a row of all caches to ``out``, in the plan's order of caches."""

    def load_row(self, row: int, data: NDArray[np.uint8]) -> None:
        """Read a row of all caches from ``data``, which ``save_row`` wrote."""


class Stages(Protocol):
    """Interface of the stages of an engine in other processes; Python provides it.

    Exceptions other than LimitError become a DeviceError. Copies of blocks come after the steps that have begun before
    them, and before later steps.
    """

    num_stages: int
    num_blocks: int
    block_bytes: int
    """Bytes of a KV block in all stages."""
    memory: dict[str, int]
    """Reserved bytes of all stages: ``weights``, ``kv_cache``, ``workspace``."""

    def begin(self, *request: NDArray[np.int32]) -> None:
        """Begin a step in the stages; the arguments are the arrays of ``step``, valid only during this call."""

    def finish(self) -> NDArray[np.float32]:
        """The logits [L, vocab_size] of the oldest step that was begun. Another thread may begin steps meanwhile."""

    def copy_block(self, source: int, to: int) -> None:
        """Copy a KV block to another."""

    def save_block(self, block: int, out: NDArray[np.uint8]) -> None:
        """Write a KV block to ``out``, stage after stage."""

    def load_block(self, block: int, data: NDArray[np.uint8]) -> None:
        """Read a KV block from ``data``, which ``save_block`` wrote."""


class EarlierStages(Protocol):
    """Interface of all stages but the last of an engine for GPUs, in other processes; Python provides it.

    All but ``fail`` raise once a stage has failed; exceptions other than LimitError become a DeviceError.
    """

    memory: dict[str, int]
    """Reserved bytes of all these stages: ``weights``, ``kv_cache``, ``workspace``."""

    def step(
        self,
        number: int,
        copies: NDArray[np.int32],
        shape: tuple[int, int, int, int, int, bool],
        inputs: NDArray[np.uint8],
    ) -> None:
        """Hand a step to the stages, and return at once: see ``StageWorker.step``. Arrays are valid only meanwhile."""

    def capture(self, shape: tuple[int, int, int, int, int, bool], inputs: NDArray[np.uint8]) -> None:
        """Have all stages capture a graph, and wait for it: see ``StageWorker.capture``."""

    def check(self, step: int) -> None:
        """Raise if a stage has failed; ``step`` is the step that is waited for."""

    def check_ended(self, step: int) -> None:
        """Raise if a stage has not ended step number ``step`` in time."""

    def fail(self, why: str) -> None:
        """Note that the last stage has failed, and end the processes."""
