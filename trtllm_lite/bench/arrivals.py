"""Draws the times at which requests arrive: all at once, as a Poisson process, or in bursts."""

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.errors import ArgumentError, shown

ARRIVALS = ("all", "poisson", "burst")
DEFAULT_BURSTINESS = 0.25


def check_arrivals(arrival: str, request_rate: float | None, burstiness: float | None) -> None:
    """Raise ArgumentError for an unknown process, or for missing or superfluous parameters."""
    if arrival not in ARRIVALS:
        raise ArgumentError(f"arrival is {shown(arrival)}: expected {', '.join(ARRIVALS)}")
    if (arrival == "all") != (request_rate is None):
        needs = "has no request_rate: leave it out"
        if arrival != "all":
            needs = "needs a request_rate (requests per second), or use arrival all, which sends all at once"
        raise ArgumentError(f"arrival {arrival} {needs}")
    if burstiness is not None and arrival != "burst":
        raise ArgumentError(f"arrival {arrival} has no burstiness: leave it out, or use arrival burst")
    for name, value in (("request_rate", request_rate), ("burstiness", burstiness)):
        if value is not None and not 0 < value < float("inf"):
            at_once = "; arrival all, without a rate, sends all at once" if value == float("inf") else ""
            raise ArgumentError(f"{name} is {value}: expected a finite number above 0{at_once}")


def arrival_times(
    arrival: str, request_rate: float | None, burstiness: float | None, count: int, generator: np.random.Generator
) -> NDArray[np.float64]:
    """float64[count]: seconds after the first arrival, ascending from 0.

    Gaps are independent with mean 1 / ``request_rate``: exponential for ``poisson``, gamma of shape ``burstiness`` for
    ``burst`` (what `vllm bench serve --burstiness` means: 1 is Poisson, less is burstier).
    """
    if request_rate is None:
        return np.zeros(count)
    shape = 1.0 if arrival == "poisson" else (burstiness or DEFAULT_BURSTINESS)
    gaps = generator.gamma(shape, 1 / (request_rate * shape), count - 1)
    return np.concatenate([[0.0], np.cumsum(gaps)])
