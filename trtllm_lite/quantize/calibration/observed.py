"""What calibration looks at in a network."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Observed:
    """Rows of ``features`` numbers, found by the names of nodes of the network.

    ``paths`` are of products that multiply the same rows, or the path of one attention, whose rows are the keys and the
    values that it appends to its caches.
    """

    features: int
    paths: tuple[str, ...]
