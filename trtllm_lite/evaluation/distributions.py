"""Computes sums over the probability distributions of logits, in float64, a few rows at a time on each core."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

_BLOCK_BYTES = 8 << 20  # bytes of the float64 logits of a block of rows


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
        """Add rows of ``logits`` [tokens, vocab_size]: row i predicts ``targets[i]``.

        Blocks of rows are summed at the same time and added in their order, so that sums are the same on any machine.
        """

        def of_block(rows: slice) -> Sums:
            return _of_block(logits[rows], targets[rows], None if reference is None else reference[rows])

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for block in pool.map(of_block, _blocks(logits)):
                values = zip(astuple(self), astuple(block), strict=True)
                self.num_tokens, self.nll, self.reference_nll, self.kl, self.agreed = (a + b for a, b in values)


def _of_block(logits: NDArray[np.float32], targets: NDArray[np.int32], reference: NDArray[np.float32] | None) -> Sums:
    q, _, log_q_total = _distribution(logits)
    nll = _nll(q, log_q_total, targets)
    if reference is None:
        return Sums(len(targets), nll)
    p, probabilities, log_p_total = _distribution(reference)
    # The sum over tokens of p (log p - log q), where log p = p - log_p_total.
    kl = (probabilities * (p - q)).sum(1) - log_p_total + log_q_total
    agreed = int((reference.argmax(1) == logits.argmax(1)).sum())
    return Sums(len(targets), nll, _nll(p, log_p_total, targets), float(kl.sum()), agreed)


def _distribution(logits: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Logits minus the largest of their row, their softmax, and the log of the sum of their exponentials."""
    shifted = logits.astype(np.float64) - logits.max(1, keepdims=True)
    probabilities = np.exp(shifted)
    total = probabilities.sum(1, keepdims=True)
    probabilities /= total
    return shifted, probabilities, np.log(total[:, 0])


def _nll(shifted: NDArray[np.float64], log_total: NDArray[np.float64], targets: NDArray[np.int32]) -> float:
    return float((log_total - shifted[np.arange(len(targets)), targets]).sum())


def _blocks(logits: NDArray[np.float32]) -> Iterator[slice]:
    rows = max(1, _BLOCK_BYTES // (8 * logits.shape[1]))
    return (slice(first, first + rows) for first in range(0, len(logits), rows))
