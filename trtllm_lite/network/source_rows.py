"""Finds which rows of one source tensor make up a weight."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.network.module_rows import ModuleRows, Run
from trtllm_lite.network.weight_expression import Read, SourceTensor, Transpose, WeightExpression


@dataclass(frozen=True)
class _Numbers(WeightExpression):
    """The numbers 1, 2, … in place of the rows of a tensor; 0 stands for a row of zeros that an expression adds."""

    count: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.count,)

    def sources(self) -> Iterator[SourceTensor]:
        yield from ()

    def evaluate(self, read: Read) -> NDArray:
        del read
        return np.arange(1, self.count + 1)


def rows_of(expression: WeightExpression) -> ModuleRows | None:
    """The rows that ``expression`` takes from the weight of one module, or None if it takes anything else."""
    names = {tensor.name for tensor in expression.sources()}
    numbered = expression.by_rows(_numbered)
    if len(names) != 1 or numbered is None:
        return None
    rows = numbered.evaluate(_nothing) - 1
    return None if (rows < 0).any() else ModuleRows(names.pop().removesuffix(".weight"), *_compact(rows))


def _numbered(rows: SourceTensor | Transpose) -> WeightExpression | None:
    return _Numbers(rows.shape[0]) if len(rows.shape) == 2 else None


def _nothing(name: str) -> NDArray:
    raise AssertionError(f"the numbers of rows need no tensor, and {name} was asked for")


def _compact(rows: NDArray) -> tuple[tuple[Run, ...], int, int]:
    """The fewest runs that make up ``rows``, how often they repeat, and the distance in rows between repeats."""
    best: tuple[tuple[Run, ...], int, int] = (_runs(rows), 1, 0)
    if len(best[0]) == 1:
        return best
    for repeats in (number for number in range(2, len(rows) + 1) if len(rows) % number == 0):
        times = rows.reshape(repeats, -1)
        period = int(times[1, 0] - times[0, 0])
        if (times == times[0] + period * np.arange(repeats)[:, None]).all():
            best = min(best, (_runs(times[0]), repeats, period), key=lambda found: len(found[0]))
    return best


def _runs(rows: NDArray) -> tuple[Run, ...]:
    """``rows`` as runs that are as long as possible."""
    steps = np.diff(rows)
    changes = np.append(np.flatnonzero(np.diff(steps)) + 1, len(steps))
    runs, at = [], 0
    while at < len(rows):
        is_last = at == len(steps)
        end = at if is_last else int(changes[np.searchsorted(changes, at, "right")])
        runs.append((int(rows[at]), end - at + 1, 1 if is_last else int(steps[at])))
        at = end + 1
    return tuple(runs)
