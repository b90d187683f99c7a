"""Numbers that depend on a step, such as grids, row counts and offsets: expressions of symbols.

The executor sets the symbols for each step. The engine's plan and the launches of kernels hold such numbers.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Extent:
    """A number known at run time: ``const`` plus the sum of ceil(symbol * multiplier / divisor) over ``terms``."""

    const: int
    terms: tuple[tuple[str, int, int], ...] = ()

    def __add__(self, other: "Extent") -> "Extent":
        return Extent(self.const + other.const, self.terms + other.terms)


def symbol(name: str, multiplier: int = 1, divisor: int = 1) -> Extent:
    """ceil(name * multiplier / divisor)."""
    return Extent(0, ((name, multiplier, divisor),))
