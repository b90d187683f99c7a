"""Chooses combinations of parameters for tests that have several parameters."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import combinations

import pytest

_Values = tuple[tuple[int, Hashable], ...]


def covering(rows: Sequence[tuple[Hashable, ...]], strength: int = 2) -> list[int]:
    """Ascending indices of rows that together have every combination of ``strength`` columns' values that any row has.

    Rows are taken one by one, each time the first of those that add the most combinations (D. M. Cohen and others, The
    AETG System: An Approach to Testing Based on Combinatorial Design, 1997, but with given rows instead of random
    ones).
    """
    found = [_together(row, strength) for row in rows]
    missing = set().union(*found)
    taken = []
    while missing:
        best = max(range(len(rows)), key=lambda number: len(found[number] & missing))
        taken.append(best)
        missing -= found[best]
    return sorted(taken)


def _together(row: Iterable[Hashable], strength: int) -> set[_Values]:
    return set(combinations(enumerate(row), strength))


def pairwise(items: Sequence[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Two lists of ``items``: tests that try all pairs of parameters of each function, and the others, each in order.

    A function has one parameter for each of its ``parametrize`` marks. Parameters of fixtures (instruction sets, of
    which a machine may lack some) are tried with every pair. Of functions marked ``each_value``, each value of each
    parameter is tried: their parameters choose how kernels are compiled, and other tests combine them.
    """
    tests: dict[tuple[int, *tuple[Hashable, ...]], list[tuple[int, tuple[Hashable, ...]]]] = defaultdict(list)
    kept = set(range(len(items)))
    for number, item in enumerate(items):
        marks = list(item.iter_markers("parametrize"))
        strength = 1 if item.get_closest_marker("each_value") else 2
        if len(marks) <= strength or not isinstance(item, pytest.Function):
            continue
        others = dict(item.callspec.params)
        row = tuple(_taken(others, mark) for mark in marks)
        tests[strength, item.parent, item.originalname, _identities(others.values())].append((number, row))
    for (strength, *_), rows in tests.items():
        kept -= {number for number, _ in rows}
        kept |= {rows[place][0] for place in covering([row for _, row in rows], strength)}
    return [items[number] for number in sorted(kept)], [item for number, item in enumerate(items) if number not in kept]


def _taken(params: dict[str, object], mark: pytest.Mark) -> Hashable:
    """The mark's values that a test has; removes them from ``params``."""
    names = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
    return _identities([params.pop(name.strip()) for name in names])


def _identities(values: Iterable[object]) -> tuple[int, ...]:
    """Identities, because arrays and lists have no hash; all tests share the objects of the marks."""
    return tuple(map(id, values))
