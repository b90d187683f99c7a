"""Counts the choices of the routers of an engine's mixtures of experts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class ExpertCounts:
    """Counts of one layer's router, summed over ``steps`` steps.

    - ``choices`` int64 [experts]: rows that have chosen each expert. Last come the experts that all rows share, if the
      engine computes these as it does the others; they count as chosen by every row
    - ``experts_read``: for each EP rank (of ``--moe_ep_size``), its experts that at least one row of a step has chosen
    - ``busiest_choices``: how often rows chose experts of the EP rank whose experts were chosen most in a step

    An EP rank has experts of consecutive numbers.
    """

    choices: NDArray[np.int64]
    experts_read: tuple[int, ...]
    steps: int
    busiest_choices: int

    def since(self, before: "ExpertCounts") -> "ExpertCounts":
        """The counts made after ``before``."""
        read = (after - earlier for after, earlier in zip(self.experts_read, before.experts_read, strict=True))
        return ExpertCounts(
            self.choices - before.choices,
            tuple(read),
            self.steps - before.steps,
            self.busiest_choices - before.busiest_choices,
        )

    @property
    def choices_by_rank(self) -> NDArray[np.int64]:
        """Choices of the experts of each EP rank."""
        sums: NDArray[np.int64] = self.choices.reshape(len(self.experts_read), -1).sum(1)
        return sums


@dataclass(frozen=True)
class Routing:
    """Means of one layer's work in one step, over all steps and layers.

    - ``experts_read``: the number of experts read by the EP rank that reads most of them over all layers
    - ``share_read``: ``experts_read`` as a share of the experts that an EP rank has
    - ``rank_rows``: the rows of an EP rank's experts, where a row counts once for each expert that it has chosen
    - ``busiest_rows``: the rows, counted likewise, of the EP rank that has most of them in that step and layer
    """

    experts_read: float
    share_read: float
    rank_rows: float
    busiest_rows: float

    @property
    def imbalance(self) -> float:
        """``busiest_rows`` as a multiple of ``rank_rows``: 1 if all ranks have as many."""
        return self.busiest_rows / self.rank_rows


def expert_counts(executor: Any) -> list[ExpertCounts]:
    """Counts of each layer with experts that this process computes (see ``_core.DeviceExecutor.expert_counts``)."""
    return [
        ExpertCounts(
            np.array(found["choices"], np.int64),
            tuple(found["experts_read"]),
            found["steps"],
            found["busiest_choices"],
        )
        for found in executor.expert_counts()
    ]


def counted_since(after: Sequence[ExpertCounts], before: Sequence[ExpertCounts]) -> list[ExpertCounts]:
    """The counts made between two times."""
    return [now.since(then) for now, then in zip(after, before, strict=True)]


def routing(counts: Sequence[ExpertCounts]) -> Routing | None:
    """The mean over all layers and steps; None if no rows were routed."""
    steps = sum(layer.steps for layer in counts)
    if not steps:
        return None
    ranks = len(counts[0].experts_read)
    read = int(np.max(np.sum([layer.experts_read for layer in counts], axis=0)))
    there_were = sum(layer.steps * len(layer.choices) / ranks for layer in counts)
    rows = sum(int(layer.choices.sum()) for layer in counts) / ranks
    busiest = sum(layer.busiest_choices for layer in counts)
    return Routing(read / steps, read / there_were, rows / steps, busiest / steps)
