"""Gathers statistics of what products multiply, as many of them in one pass over the text as fit a budget."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.quantize.calibration.statistics import Accumulator, Rows
from trtllm_lite.quantize.calibration.store import StatisticsStore

DEFAULT_BUDGET = 2 << 30
_MAX_SAMPLED = 256  # rows of each input

Report = Callable[[str, int, int], None]


class Observer(Protocol):
    """An engine, on any device, that shows what its products multiply."""

    def rows(self, tokens: NDArray[np.int32], names: Sequence[str]) -> Iterable[Mapping[str, Rows]]:
        """Run a sequence; yields the rows of each of the inputs ``names``, part by part."""


@dataclass(frozen=True)
class Wanted:
    """The inputs to observe, with their features; ``gram``: with the means of outer products."""

    features: Mapping[str, int]
    gram: bool
    seed: int = 0


def calibrate(
    wanted: Wanted,
    observer: Observer,
    sequences: Sequence[NDArray[np.int32]],
    store: StatisticsStore,
    progress: Report,
    budget: int = DEFAULT_BUDGET,
) -> None:
    """Put statistics of all wanted inputs into ``store``, but for those that are there already.

    Accumulators take at most ``budget`` bytes, or those of one input. The same sequences and seed give the same
    statistics, whatever the budget is and wherever an earlier run ended. Raises BuildError.
    """
    sampled = _sampled(sum(map(len, sequences)), wanted.seed)
    passes = list(_passes(store.missing(list(wanted.features)), wanted, len(sampled), budget))
    done, total = 0, len(passes) * len(sequences)
    for names in passes:
        accumulators = {name: Accumulator(name, wanted.features[name], sampled, wanted.gram) for name in names}
        for tokens in sequences:
            for part in observer.rows(tokens, names):
                for name, rows in part.items():
                    accumulators[name].add(rows)
            done += 1
            progress("calibrate", done, total)
        for name, accumulator in accumulators.items():
            store.write(name, accumulator.finish())


def _sampled(num_rows: int, seed: int) -> NDArray[np.int64]:
    """The numbers of the rows to keep, ascending; the same rows of every input."""
    size = min(num_rows, _MAX_SAMPLED)
    return np.sort(np.random.default_rng(seed).choice(num_rows, size, replace=False)).astype(np.int64)


def _passes(names: Sequence[str], wanted: Wanted, num_sampled: int, budget: int) -> Iterator[list[str]]:
    """``names``, in order, in groups whose accumulators fit the budget, or that are of one."""
    group: list[str] = []
    taken = 0
    for name in names:
        size = Accumulator.num_bytes(wanted.features[name], num_sampled, wanted.gram)
        if group and taken + size > budget:
            yield group
            group, taken = [], 0
        group.append(name)
        taken += size
    if group:
        yield group
