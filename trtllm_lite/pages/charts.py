"""Computes the geometry of line charts, in units of an SVG: axes with ticks, curves with dots, and a legend."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

NUM_COLORS = 8

_WIDTH, _HEIGHT = 360, 240  # about the pixels of a chart on a phone, where text is then hardly scaled
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 22, 10, 38
_TICKS = 5  # approximate number of ticks on an axis
_CROWD = 20  # curves of at least this many points have small dots
_STEPS = (1, 2, 5, 10)

Point = tuple[float, float]
Kind = Literal["measured", "floor", "earlier", "dots"]


@dataclass(frozen=True)
class Curve:
    """Points from left to right, joined unless the ``kind`` is ``dots``.

    ``measured`` is drawn in full, a ``floor`` (or a ceiling) with dashes, an ``earlier`` run dotted. ``labels`` are the
    tooltips of the points, in their order.
    """

    name: str
    points: Sequence[Point]
    color: int = 0
    kind: Kind = "measured"
    labels: Sequence[str] = ()


@dataclass(frozen=True)
class Axis:
    """``text`` writes a number with its unit; all numbers of a logarithmic axis are above 0.

    ``ticks``, if there are any, are the only ticks. A linear axis begins at 0, or with ``near`` close to its numbers.
    """

    title: str
    text: Callable[[float], str]
    log: bool = False
    ticks: tuple[float, ...] = ()
    near: bool = False


@dataclass(frozen=True)
class Chart:
    """The content of a chart; ``note`` says how to read the chart."""

    title: str
    x: Axis
    y: Axis
    curves: Sequence[Curve]
    note: str = ""


@dataclass(frozen=True)
class Tick:
    """A line of the grid, with the text at its end."""

    at: float
    text: str


@dataclass(frozen=True)
class Dot:
    """A point of a curve, and the text of its tooltip."""

    x: float
    y: float
    radius: float
    text: str


@dataclass(frozen=True)
class Line:
    """A curve as the data of an SVG path (empty for dots alone), and its dots."""

    curve: Curve
    path: str
    dots: tuple[Dot, ...]


@dataclass(frozen=True)
class Drawing:
    """A chart ready to be drawn; ``left``, ``right``, ``top`` and ``bottom`` bound the part with the curves.

    ``legend`` has the first curve of each name.
    """

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    lines: tuple[Line, ...]
    legend: tuple[Curve, ...]


@dataclass(frozen=True)
class _Scale:
    """The positions between ``begin`` and ``end`` of the numbers from ``low`` to ``high``."""

    low: float
    high: float
    begin: float
    end: float
    log: bool

    def at(self, value: float) -> float:
        low, high, value = (math.log(part) if self.log else part for part in (self.low, self.high, value))
        return round(self.begin + (self.end - self.begin) * (value - low) / (high - low), 1)


def draw(chart: Chart) -> Drawing:
    """The drawing of a chart, whose numbers on a logarithmic axis must be above 0."""
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    firsts: dict[str, Curve] = {}
    for curve in chart.curves:
        firsts.setdefault(curve.name, curve)
    points = [point for curve in chart.curves for point in curve.points]
    x_ticks = chart.x.ticks or ticks([x for x, _ in points], log=chart.x.log, near=chart.x.near)
    y_ticks = chart.y.ticks or ticks([y for _, y in points], log=chart.y.log, near=chart.y.near)
    x = _scale([*x_ticks, *(x for x, _ in points)], _LEFT, right, log=chart.x.log)
    y = _scale([*y_ticks, *(y for _, y in points)], bottom, _TOP, log=chart.y.log)
    return Drawing(
        width=_WIDTH,
        height=_HEIGHT,
        left=_LEFT,
        right=right,
        top=_TOP,
        bottom=bottom,
        across=tuple(Tick(x.at(value), chart.x.text(value)) for value in x_ticks),
        up=tuple(Tick(y.at(value), chart.y.text(value)) for value in y_ticks),
        lines=tuple(_line(chart, curve, x, y) for curve in chart.curves),
        legend=tuple(firsts.values()),
    )


def ticks(values: Sequence[float], *, log: bool, near: bool = False) -> tuple[float, ...]:
    """Round numbers around ``values``: in even steps, or on a logarithmic axis 1, 2, 5 and 10 or powers of 10.

    Even steps begin at 0, or with ``near`` below the least of the values. If all values are 0, the ticks are 0 and 1.
    """
    low, high = min(values), max(values)
    return _log_ticks(low, high) if log else _even_ticks(low if near and low < high else 0.0, high)


def _even_ticks(low: float, high: float) -> tuple[float, ...]:
    if high <= low:
        return (0.0, 1.0)
    unit = 10.0 ** math.floor(math.log10((high - low) / _TICKS))
    step = next(unit * factor for factor in _STEPS if unit * factor * _TICKS >= (high - low) * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(step * number for number in range(first, last + 1))


def _log_ticks(low: float, high: float) -> tuple[float, ...]:
    begin, end = math.floor(math.log10(low)), math.ceil(math.log10(high))
    decades = max(end - begin, 1)
    if decades > 2:
        stride = math.ceil(decades / _TICKS)
        return tuple(10.0**power for power in range(begin, begin + stride * math.ceil(decades / stride) + 1, stride))
    marks = [factor * 10.0**power for power in range(begin, begin + decades) for factor in _STEPS[:-1]]
    marks.append(10.0 ** (begin + decades))
    first = max(number for number, mark in enumerate(marks) if mark <= low * (1 + 1e-9))
    last = min((number for number, mark in enumerate(marks) if mark >= high * (1 - 1e-9)), default=len(marks) - 1)
    return tuple(marks[first : max(last, first + 1) + 1])


def _scale(values: Iterable[float], begin: float, end: float, *, log: bool) -> _Scale:
    """The scale of all ``values``; a single number is in the middle."""
    listed = list(values)
    low, high = min(listed), max(listed)
    if low == high:
        low, high = (low / 2, high * 2) if log else (low - 1, high + 1)
    return _Scale(low, high, begin, end, log)


def _line(chart: Chart, curve: Curve, x: _Scale, y: _Scale) -> Line:
    places = [(x.at(across), y.at(up)) for across, up in curve.points]
    path = "" if curve.kind == "dots" else "M" + "L".join(f"{across} {up}" for across, up in places)
    labels = curve.labels or [f"{curve.name}, {chart.x.title} {chart.x.text(across)}" for across, _ in curve.points]
    told = [f"{label}: {chart.y.text(up)}" for label, (_, up) in zip(labels, curve.points, strict=True)]
    radius = 1.5 if len(places) > _CROWD else 2.5 if curve.kind == "earlier" else 4.0
    dots = tuple(Dot(*place, radius, text) for place, text in zip(places, told, strict=True))
    return Line(curve, path, dots)
