"""Describes an input that calibration observes in a network."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Observed:
    """Rows of ``features`` numbers, found by the names of nodes of the network.

    ``paths`` are those of products with the same input, or the path of one attention, whose rows are the keys and the
    values that it appends to its caches.
    """

    features: int
    paths: tuple[str, ...]
