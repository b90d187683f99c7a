"""Describes an input that calibration observes in a network."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Observed:
    """Rows of ``features`` numbers, found by the names of nodes of the network.

    ``paths`` are the paths of products that read these rows, or of one attention that appends them, as keys and
    values, to its caches.
    """

    features: int
    paths: tuple[str, ...]
