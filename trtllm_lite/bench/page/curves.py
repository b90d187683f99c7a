"""Makes the points and axes that several charts of a benchmark need."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from trtllm_lite.common.units import short
from trtllm_lite.pages.charts import Axis, Curve, Point

_WIDE = 20  # an axis is logarithmic if the ratio of its numbers is larger
_MOST_TICKS = 6

Report = Mapping[str, Any]
Figure = Callable[[Report], float | None]

seconds = partial(short, unit="s")
tokens_per_s = partial(short, unit="tok/s")


def number(value: float) -> str:
    """A number without a unit."""
    return short(value, "")


def plain_figure(name: str) -> Figure:
    """A function of a report: its figure ``name``, or None unless that is a number above 0."""
    return lambda report: positive(report["figures"].get(name))


def positive(value: Any) -> float | None:
    """``value`` if it is a finite number above 0, else None: reports of earlier runs come from files."""
    return value if isinstance(value, int | float) and 0 < value < math.inf else None


def counts_axis(title: str, values: Iterable[int]) -> Axis:
    """A logarithmic axis of counts, with a tick for each if they are few."""
    own = tuple(float(value) for value in sorted(set(values)))
    return Axis(title, number, log=True, ticks=own if len(own) <= _MOST_TICKS else ())


def value_axis(text: Callable[[float], str], curves: Sequence[Curve]) -> Axis:
    """The axis of the curves' values: from 0, or logarithmic where they differ by much."""
    values = [y for curve in curves for _, y in curve.points]
    return Axis("", text, log=min(values) > 0 and max(values) > _WIDE * min(values))


def points_of(reports: Sequence[Report], x: Figure, y: Figure) -> list[Point]:
    """A point for each report that has both numbers, from left to right."""
    pairs = [(x(report), y(report)) for report in reports]
    return sorted((across, up) for across, up in pairs if across is not None and up is not None)
