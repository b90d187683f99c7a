"""Gathers statistics of the inputs of products; each pass over the text takes as many inputs as fit in a budget."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.quantize.calibration.statistics import Accumulator, Gram, ShownRows
from trtllm_lite.quantize.calibration.store import StatisticsStore

_MAX_SAMPLED = 256  # rows sampled from each input

Report = Callable[[str, int, int], None]


class Observer(Protocol):
    """An engine, on any device, that shows the inputs of its products."""

    @property
    def budget(self) -> int:
        """Bytes that accumulators may take."""

    def rows(self, tokens: NDArray[np.int32], names: Sequence[str]) -> Iterable[Mapping[str, ShownRows]]:
        """Run a sequence; yields the rows of each of the inputs ``names``, step by step."""

    def gram(self, name: str, features: int) -> Gram:
        """A sum, initially zero, of the outer products of an input's rows."""

    def gram_bytes(self, features: int) -> int:
        """Return the bytes of one sum of outer products."""


@dataclass(frozen=True)
class Wanted:
    """The inputs to observe, with their numbers of features; with ``gram`` also means of outer products."""

    features: Mapping[str, int]
    gram: bool
    seed: int = 0


def calibrate(
    wanted: Wanted,
    observer: Observer,
    sequences: Sequence[NDArray[np.int32]],
    store: StatisticsStore,
    progress: Report,
) -> None:
    """Put statistics of all wanted inputs into ``store``, except those that it has already.

    Accumulators take at most the observer's budget, except that a pass observes at least one input. The same sequences
    and seed give the same statistics, whatever the budget is and however often the run was interrupted. Raises
    BuildError.
    """
    sampled = _sampled(sum(map(len, sequences)), wanted.seed)
    passes = list(_passes(store.missing(list(wanted.features)), wanted, len(sampled), observer))
    done, total = 0, len(passes) * len(sequences)
    for names in passes:
        accumulators = {name: _accumulator(name, wanted, sampled, observer) for name in names}
        for tokens in sequences:
            for part in observer.rows(tokens, names):
                for name, rows in part.items():
                    accumulators[name].add(rows)
            done += 1
            progress("calibrate", done, total)
        for name in names:
            store.write(name, accumulators.pop(name).finish())


def _accumulator(name: str, wanted: Wanted, sampled: NDArray[np.int64], observer: Observer) -> Accumulator:
    features = wanted.features[name]
    return Accumulator(name, features, sampled, observer.gram(name, features) if wanted.gram else None)


def _sampled(num_rows: int, seed: int) -> NDArray[np.int64]:
    """The numbers of the rows to keep, ascending; they are the same for every input."""
    size = min(num_rows, _MAX_SAMPLED)
    return np.sort(np.random.default_rng(seed).choice(num_rows, size, replace=False)).astype(np.int64)


def _passes(names: Sequence[str], wanted: Wanted, num_sampled: int, observer: Observer) -> Iterator[list[str]]:
    """Split ``names``, in order, into groups whose accumulators fit the budget, or that have one input."""
    group: list[str] = []
    taken = 0
    for name in names:
        features = wanted.features[name]
        size = Accumulator.num_bytes(features, num_sampled) + (observer.gram_bytes(features) if wanted.gram else 0)
        if group and taken + size > observer.budget:
            yield group
            group, taken = [], 0
        group.append(name)
        taken += size
    if group:
        yield group
