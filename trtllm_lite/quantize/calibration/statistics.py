"""What calibration notes of the activations that a product multiplies."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.errors import BuildError

Rows = NDArray[np.float32]


@dataclass(frozen=True)
class Statistics:
    """Of all rows x of one input, of K features.

    ``abs_max`` and ``abs_mean``, float32[K], are those of |x|; ``sample``, float32[rows, K], some rows; ``gram``,
    float32[K, K], the mean of the outer products x x^T, if it was asked for.
    """

    abs_max: NDArray[np.float32]
    abs_mean: NDArray[np.float32]
    sample: NDArray[np.float32]
    gram: NDArray[np.float32] | None = None

    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """The arrays that there are, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def check_channels(self, layer: str, scheme: str) -> None:
        """Raise BuildError if a channel is zero throughout, so that no factor can be found for it."""
        dead = np.flatnonzero(self.abs_max == 0)
        if dead.size:
            raise BuildError(
                f"{layer}: {dead.size} of the {self.abs_max.size} channels that it multiplies, the first number "
                f"{dead[0]}, are zero throughout the calibration text, and {scheme} scales channels by their size: "
                "calibrate with a longer text, or keep the layer in full precision"
            )


def placeholder(name: str) -> Statistics:
    """Made-up statistics of any input, for engines without weights, and for those who only ask what a network takes.

    Its largest magnitude is one that normalised rows reach.
    """
    del name
    largest = np.full(1, 28, np.float32)
    return Statistics(largest, np.ones_like(largest), largest[None])


class Accumulator:
    """Gathers :class:`Statistics` of rows as they come; sums are float64.

    ``sampled`` are the numbers of the rows to keep, ascending, counted from 0 over all that come.
    """

    def __init__(self, name: str, features: int, sampled: NDArray[np.int64], wants_gram: bool) -> None:
        self._name = name
        self._count = 0
        self._sampled = sampled
        self._max = np.zeros(features, np.float32)
        self._sum = np.zeros(features)
        self._sample: list[Rows] = []
        self._gram = np.zeros((features, features)) if wants_gram else None

    @staticmethod
    def num_bytes(features: int, num_sampled: int, wants_gram: bool) -> int:
        """Memory of one accumulator."""
        return 12 * features + 4 * features * num_sampled + (12 * features**2 if wants_gram else 0)

    def add(self, rows: Rows) -> None:
        """Note ``rows`` [tokens, features]. Raises BuildError if they are not finite."""
        magnitude = np.abs(rows)
        largest = magnitude.max(0, initial=0)
        if not np.isfinite(largest).all():
            raise BuildError(
                f"{self._name}: what it multiplies is not finite in the calibration text (channel "
                f"{np.flatnonzero(~np.isfinite(largest))[0]}): the checkpoint's weights are damaged, or overflow; "
                "convert again, or calibrate with another text"
            )
        np.maximum(self._max, largest, out=self._max)
        self._sum += magnitude.sum(0, dtype=np.float64)
        first, last = np.searchsorted(self._sampled, [self._count, self._count + len(rows)])
        self._sample.append(rows[self._sampled[first:last] - self._count])
        self._count += len(rows)
        if self._gram is not None:
            self._gram += rows.T @ rows

    def finish(self) -> Statistics:
        """The statistics of all rows so far, of which there is at least one."""
        gram = None if self._gram is None else (self._gram / self._count).astype(np.float32)
        mean = (self._sum / self._count).astype(np.float32)
        return Statistics(self._max, mean, np.concatenate(self._sample), gram)
