"""Gathers statistics of the activations that a product multiplies."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.errors import BuildError

Rows = NDArray[np.float32]


@dataclass(frozen=True)
class Statistics:
    """Statistics of all rows x, of K features each, of one input.

    ``abs_max`` and ``abs_mean``, float32[K], are the maximum and the mean of |x|; ``sample``, float32[rows, K], holds
    some rows; ``gram``, float32[K, K], is the mean of the outer products x x^T, if it was asked for.
    """

    abs_max: NDArray[np.float32]
    abs_mean: NDArray[np.float32]
    sample: NDArray[np.float32]
    gram: NDArray[np.float32] | None = None

    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """The arrays that are present, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def check_channels(self, layer: str, scheme: str) -> None:
        """Raise BuildError if a channel is always zero, so that no factor can be found for it."""
        above = layer.rpartition(".")[0]
        dead = np.flatnonzero(self.abs_max == 0)
        if dead.size:
            raise BuildError(
                f"{layer}: {dead.size} of its {self.abs_max.size} input channels, of which the first is number "
                f"{dead[0]}, are zero throughout the calibration text, and {scheme} scales channels by their size: "
                "calibrate with a longer text, or keep the products there in full precision (--quantize_override "
                f"'{f'{above}.*' if above else layer}=full_prec')"
            )


def placeholder(name: str) -> Statistics:
    """Made-up statistics of any input, for engines without weights, or if only the names of inputs are asked for.

    The largest magnitude is one that normalised rows reach.
    """
    del name
    largest = np.full(1, 28, np.float32)
    return Statistics(largest, np.ones_like(largest), largest[None])


class ShownRows(Protocol):
    """Rows [tokens, features] of one input that an engine shows until its next step, on whatever device they lie."""

    def __len__(self) -> int:
        """Number of rows."""

    def magnitudes(self) -> Rows:
        """float32 [2, features]: the largest |x| of each feature, and the sum of |x|."""

    def take(self, begin: int, end: int) -> Rows:
        """Rows ``begin`` to ``end``."""


class Gram(Protocol):
    """The sum of the outer products of rows, on the device that shows them."""

    def add(self, rows: ShownRows) -> None:
        """Add the outer products of ``rows``."""

    def mean(self, count: int) -> Rows:
        """float32 [features, features]: the sum over ``count``."""


class Accumulator:
    """Gathers :class:`Statistics` of rows, which come step by step; sums of magnitudes are float64.

    ``sampled`` are the numbers of the rows to keep, ascending, counted from 0 over all rows.
    """

    def __init__(self, name: str, features: int, sampled: NDArray[np.int64], gram: Gram | None = None) -> None:
        self._name = name
        self._count = 0
        self._sampled = sampled
        self._max = np.zeros(features, np.float32)
        self._sum = np.zeros(features)
        self._sample: list[Rows] = []
        self._gram = gram

    @staticmethod
    def num_bytes(features: int, num_sampled: int) -> int:
        """Bytes of one accumulator without its gram matrix."""
        return 12 * features + 4 * features * num_sampled

    def add(self, rows: ShownRows) -> None:
        """Add ``rows`` to the statistics. Raises BuildError if they are not finite."""
        largest, sums = rows.magnitudes()
        if not np.isfinite(largest).all():
            raise BuildError(
                f"{self._name}: its input is not finite in the calibration text (channel "
                f"{np.flatnonzero(~np.isfinite(largest))[0]}): the checkpoint's weights are damaged, or overflow; "
                "convert again, or calibrate with another text"
            )
        np.maximum(self._max, largest, out=self._max)
        self._sum += sums
        first, last = np.searchsorted(self._sampled, [self._count, self._count + len(rows)])
        self._sample += [rows.take(number, number + 1) for number in self._sampled[first:last] - self._count]
        self._count += len(rows)
        if self._gram is not None:
            self._gram.add(rows)

    def finish(self) -> Statistics:
        """The statistics of all rows so far, at least one."""
        gram = None if self._gram is None else self._gram.mean(self._count)
        mean = (self._sum / self._count).astype(np.float32)
        return Statistics(self._max, mean, np.concatenate(self._sample), gram)
