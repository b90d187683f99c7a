"""Finds repetitions, such as the layers of a network, so that a description lists them once."""

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

_MAX_PERIOD = 64  # far above the instructions of a layer


@dataclass(frozen=True)
class Run:
    """``period`` items from position ``start`` on, which occur ``repeats`` times, one after the other."""

    start: int
    period: int
    repeats: int


def pattern(name: str) -> str:
    """``name`` with a star for each number between dots: layers.*.mlp.weight."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


def runs(keys: Sequence[Hashable]) -> list[Run]:
    """``keys`` as runs that follow each other; items that do not repeat are together in runs of one repeat.

    Among runs that begin at the same item, the one that covers the most items is chosen, and among these the one with
    the shortest period.
    """
    numbers: dict[Hashable, int] = {}
    ids = [numbers.setdefault(key, len(numbers)) for key in keys]
    found: list[Run] = []
    start = 0
    while start < len(ids):
        found.append(_longest(ids, start))
        start += found[-1].period * found[-1].repeats
    return joined(found)


def unfolded(run: Run) -> Run:
    """A run of all items of ``run``, in a single repeat."""
    return Run(run.start, run.period * run.repeats, 1)


def joined(found: Iterable[Run]) -> list[Run]:
    """``found`` with neighbouring runs of one repeat joined."""
    together: list[Run] = []
    for run in found:
        if together and run.repeats == together[-1].repeats == 1:
            run = Run(together[-1].start, together.pop().period + run.period, 1)
        together.append(run)
    return together


def _longest(ids: Sequence[int], start: int) -> Run:
    best = Run(start, 1, 1)
    for period in range(1, min(_MAX_PERIOD, (len(ids) - start) // 2) + 1):
        if ids[start] != ids[start + period]:
            continue
        first, repeats = ids[start : start + period], 1
        while ids[start + repeats * period : start + (repeats + 1) * period] == first:
            repeats += 1
        if repeats > 1 and period * repeats > best.period * best.repeats:
            best = Run(start, period, repeats)
    return best
