"""Draws lengths of prompts and outputs: fixed, uniform, or with the long tail of real conversations."""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar, Protocol

import numpy as np

from trtllm_lite.errors import ArgumentError, shown

FORMS = "N, LEAST:MOST, lognormal:MEDIAN:P95 or sharegpt"

# Median and P95 in tokens of a mix like ShareGPT's conversations, after the statistics in Sun et al., "Llumnix", OSDI
# 2024, table 1. Log-normal lengths through these two points are a model of the dataset, not a replay of it.
_SHAREGPT = {"input_len": (74, 1484), "output_len": (487, 988)}
_STANDARD = NormalDist()
_Z95 = _STANDARD.inv_cdf(0.95)


class Lengths(Protocol):
    """A distribution of lengths in tokens."""

    @property
    def shortest(self) -> int:
        """The least length that can be drawn."""

    @property
    def longest(self) -> int | None:
        """The greatest length that can be drawn; None for a distribution without an upper end."""

    def draw(self, generator: np.random.Generator, at_most: int) -> int:
        """Draw a length from ``shortest`` to ``at_most``, which is not below ``longest`` unless that is None."""


@dataclass(frozen=True)
class Uniform:
    """A uniform distribution from ``shortest`` to ``longest``, which may be equal."""

    shortest: int
    longest: int

    def draw(self, generator: np.random.Generator, at_most: int) -> int:
        """Implements :class:`Lengths`."""
        assert self.longest <= at_most
        return int(generator.integers(self.shortest, self.longest + 1))


@dataclass(frozen=True)
class LogNormal:
    """A log-normal distribution, given by the median and the 95th percentile, and truncated at a bound.

    Lengths beyond the bound are drawn again instead of being clipped, so that the shape of the distribution below the
    bound is unchanged.
    """

    median: float
    p95: float
    shortest: ClassVar[int] = 1
    longest: ClassVar[None] = None

    @property
    def sigma(self) -> float:
        """Standard deviation of the logarithm."""
        return math.log(self.p95 / self.median) / _Z95

    def draw(self, generator: np.random.Generator, at_most: int) -> int:
        """Implements :class:`Lengths` by inverting the distribution function: one draw takes one random number."""
        share_below = _STANDARD.cdf(math.log(at_most / self.median) / self.sigma)
        quantile = generator.uniform(0, share_below) or np.finfo(float).tiny
        length = math.ceil(self.median * math.exp(self.sigma * _STANDARD.inv_cdf(quantile)))
        return min(max(length, self.shortest), at_most)


def parse_lengths(name: str, text: str) -> Lengths:
    """The distribution that ``text`` describes, for the option ``name`` (input_len or output_len).

    Raises ArgumentError for another form, lengths below 1, or a range whose bounds are swapped.
    """
    if text == "sharegpt":
        median, p95 = _SHAREGPT[name]
        return LogNormal(median, p95)
    kind, _, rest = text.partition(":")
    try:
        numbers = [int(part) for part in (rest if kind == "lognormal" else text).split(":")]
    except ValueError:
        numbers = []
    if kind == "lognormal" and len(numbers) == 2 and 1 <= numbers[0] < numbers[1]:
        return LogNormal(median=numbers[0], p95=numbers[1])
    if kind != "lognormal" and len(numbers) in (1, 2) and 1 <= numbers[0] <= numbers[-1]:
        return Uniform(numbers[0], numbers[-1])
    raise ArgumentError(
        f"{name} is {shown(text)}: expected {FORMS}, with whole numbers from 1 on, the smaller one first"
    )
