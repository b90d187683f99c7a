"""Keeps the logits of a reference that several engines are compared with."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.common.temporaries import temporary_name
from trtllm_lite.runtime.sequence_runner import SequenceRunner


class KeptLogits(SequenceRunner):
    """A runner that keeps the logits of each sequence in a file of ``directory``, and reads existing files.

    A file takes 4 * tokens * vocab_size bytes.
    """

    def __init__(self, directory: Path, engine_dir: Path, max_len: int | None, num_threads: int | None) -> None:
        super().__init__(engine_dir, max_len, num_threads)
        self._directory = directory

    def logits(self, token_ids: NDArray[np.int32], most: int) -> Iterator[NDArray[np.float32]]:
        """Implements :meth:`SequenceRunner.logits`."""
        file = self._directory / f"{hashlib.sha256(token_ids.tobytes()).hexdigest()}.npy"
        if not file.is_file():
            self._keep(file, token_ids, most)
        kept = np.load(file, mmap_mode="r", allow_pickle=False)
        for part in self.parts(len(token_ids), min(most, self.max_logits)):
            yield kept[part.first : part.end]

    def _keep(self, file: Path, token_ids: NDArray[np.int32], most: int) -> None:
        temporary, shape = temporary_name(file), (len(token_ids), self.manifest.model.vocab_size)
        kept = np.lib.format.open_memmap(temporary, "w+", np.dtype(np.float32), shape)
        first = 0
        for part in super().logits(token_ids, most):
            kept[first : first + len(part)] = part
            first += len(part)
        kept.flush()
        temporary.replace(file)
