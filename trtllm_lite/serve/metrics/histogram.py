"""Defines histograms, and the bounds of their buckets: vLLM's, with further bounds at the small end."""

from bisect import bisect_left
from collections.abc import Sequence
from functools import cache
from itertools import accumulate

from prometheus_client.utils import floatToGoString

# fmt: off
FIRST_TOKEN_BOUNDS = (
    0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)
LATENCY_BOUNDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0,
    40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)
# fmt: on
N_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0)


def count_bounds(most: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 and so on, up to ``most``."""
    steps = (float(step * 10**power) for power in range(len(str(most))) for step in (1, 2, 5))
    return tuple(bound for bound in steps if bound <= most)


class Histogram:
    """Counts values by bucket; only one thread at a time may call it."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def sample(self) -> tuple[list[tuple[str, float]], float]:
        """The bounds, each with the number of values up to it, and the sum of all values."""
        return cumulated(self._bounds, self._counts), self._sum


def cumulated(bounds: tuple[float, ...], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Prometheus's cumulative buckets, from counts between ``bounds`` and above the last."""
    return [(name, float(count)) for name, count in zip(_names(bounds), accumulate(counts), strict=True)]


@cache
def _names(bounds: tuple[float, ...]) -> list[str]:
    return [*map(floatToGoString, bounds), "+Inf"]
