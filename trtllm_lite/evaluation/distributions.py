"""Sums over the distributions that logits mean, in float64 and a few rows at a time."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_BLOCK_BYTES = 16 << 20  # of log probabilities at a time


@dataclass
class Sums:
    """Sums over predicted tokens; ``kl`` and ``agreed`` are those beside a reference."""

    num_tokens: int = 0
    nll: float = 0.0
    reference_nll: float = 0.0
    kl: float = 0.0
    agreed: int = 0

    def add(
        self, logits: NDArray[np.float32], targets: NDArray[np.int32], reference: NDArray[np.float32] | None = None
    ) -> None:
        """Add rows of ``logits`` [tokens, vocab_size]: row i predicts ``targets[i]``."""
        self.num_tokens += len(targets)
        for rows in _blocks(logits):
            log_q = log_softmax(logits[rows])
            self.nll -= _picked(log_q, targets[rows])
            if reference is not None:
                log_p = log_softmax(reference[rows])
                self.reference_nll -= _picked(log_p, targets[rows])
                self.kl += float((np.exp(log_p) * (log_p - log_q)).sum())
                self.agreed += int((reference[rows].argmax(1) == logits[rows].argmax(1)).sum())


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Log probabilities of each row."""
    shifted = logits.astype(np.float64) - logits.max(1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(1, keepdims=True))
    return shifted


def _picked(log_p: NDArray[np.float64], targets: NDArray[np.int32]) -> float:
    return float(log_p[np.arange(len(targets)), targets].sum())


def _blocks(logits: NDArray[np.float32]) -> Iterator[slice]:
    rows = max(1, _BLOCK_BYTES // (8 * logits.shape[1]))
    return (slice(first, first + rows) for first in range(0, len(logits), rows))
