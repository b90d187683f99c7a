"""Chooses combinations of parameters for tests that have several parameters."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import combinations

import pytest

_Values = tuple[tuple[int, Hashable], ...]


def covering(rows: Sequence[tuple[Hashable, ...]], strength: int = 2) -> list[int]:
    """Ascending indices of rows that together have every combination of ``strength`` columns' values that any row has.

    Rows are taken one by one, each time one of those that add the most combinations (D. M. Cohen and others, The AETG
    System: An Approach to Testing Based on Combinatorial Design, 1997, but with given rows instead of random ones): the
    first of those whose values have been taken least.
    """
    found = [_together(row, strength) for row in rows]
    missing = set().union(*found)
    taken = []
    uses: Counter[tuple[int, Hashable]] = Counter()
    while missing:
        added = [len(values & missing) for values in found]
        most = max(added)
        adding = [number for number, count in enumerate(added) if count == most]
        best = min(adding, key=lambda number: sum(uses[value] for value in enumerate(rows[number])))
        taken.append(best)
        missing -= found[best]
        uses.update(enumerate(rows[best]))
    return sorted(taken)


def _together(row: Iterable[Hashable], strength: int) -> set[_Values]:
    return set(combinations(enumerate(row), strength))


def pairwise(items: Sequence[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Two lists of ``items``: tests that try all pairs of parameters of each function, and the others, each in order.

    A function has one parameter for each of its ``parametrize`` marks. Parameters of fixtures (instruction sets, of
    which a machine may lack some) are tried with every pair. Of functions marked ``each_value``, each value of each
    parameter is tried, those of fixtures (families of models) included: their parameters choose how kernels are
    compiled, or change what does not depend on the family, and other tests combine them.
    """
    tests: dict[tuple[int, *tuple[Hashable, ...]], list[tuple[int, tuple[Hashable, ...]]]] = defaultdict(list)
    kept = set(range(len(items)))
    for number, item in enumerate(items):
        marks = list(item.iter_markers("parametrize"))
        strength = 1 if item.get_closest_marker("each_value") else 2
        if not isinstance(item, pytest.Function) or not marks:
            continue
        others = dict(item.callspec.params)
        row = tuple(_taken(others, _names(mark)) for mark in marks)
        if strength == 1:
            row += tuple(_taken(others, [name]) for name in sorted(others))
        if len(row) <= strength:
            continue
        tests[strength, item.parent, item.originalname, _identities(others.values())].append((number, row))
    for (strength, *_), rows in tests.items():
        kept -= {number for number, _ in rows}
        kept |= {rows[place][0] for place in covering([row for _, row in rows], strength)}
    return [items[number] for number in sorted(kept)], [item for number, item in enumerate(items) if number not in kept]


def _names(mark: pytest.Mark) -> list[str]:
    """The names of the arguments that a ``parametrize`` mark gives."""
    names = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
    return [name.strip() for name in names]


def _taken(params: dict[str, object], names: Iterable[str]) -> Hashable:
    """The values of one parameter that a test has; removes them from ``params``."""
    return _identities([params.pop(name) for name in names])


def _identities(values: Iterable[object]) -> tuple[int, ...]:
    """Identities, because arrays and lists have no hash; all tests share the objects of the marks."""
    return tuple(map(id, values))
