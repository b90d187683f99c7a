"""Charts put their ticks and points in the right places."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_lite.pages.charts import Axis, Chart, Curve, draw, ticks

LINEAR, LOG = Axis("x", "{:g}".format), Axis("y", "{:g}".format, log=True)
POSITIVE = st.lists(st.floats(1e-9, 1e15), min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("values", "log", "expected"),
    [
        *(([7.0], False, [0, 2, 4, 6, 8]), ([0.0], False, [0, 1]), ([100.0, 3.0], False, [0, 20, 40, 60, 80, 100])),
        *(([3.0, 40.0], True, [2, 5, 10, 20, 50]), ([1.0], True, [1, 2]), ([1.0, 1e4], True, [1, 10, 100, 1e3, 1e4])),
        ([2e-9, 9e12], True, [1e-9, 1e-4, 10, 1e6, 1e11, 1e16]),
    ],
)
def test_ticks_are_round(values: list[float], log: bool, expected: list[float]) -> None:
    assert ticks(values, log=log) == pytest.approx(expected)


def test_ticks_may_begin_near_the_values() -> None:
    assert ticks([41.3, 41.9], log=False, near=True) == pytest.approx([41.2, 41.4, 41.6, 41.8, 42.0])
    assert ticks([5.0, 5.0], log=False, near=True) == pytest.approx([0, 1, 2, 3, 4, 5])


@given(POSITIVE, st.booleans())
def test_ticks_are_few_and_around_all_values(values: list[float], log: bool) -> None:
    found = ticks(values, log=log)
    assert 2 <= len(found) <= 8
    assert found[0] <= min(values) * (1 + 1e-6)
    assert found[-1] >= max(values) * (1 - 1e-6)
    assert list(found) == sorted(set(found))


@given(POSITIVE, st.booleans(), st.booleans())
def test_points_lie_within_the_axes_in_their_order(values: list[float], log_x: bool, log_y: bool) -> None:
    axes = (LOG if log else LINEAR for log in (log_x, log_y))
    points = [(value, value) for value in sorted(values)]
    drawing = draw(Chart("chart", *axes, [Curve("curve", points)]))
    (line,) = drawing.lines
    across, up = [dot.x for dot in line.dots], [dot.y for dot in line.dots]
    assert across == sorted(across)
    assert up == sorted(up, reverse=True)
    assert all(drawing.left <= x <= drawing.right for x in across)
    assert all(drawing.top <= y <= drawing.bottom for y in up)
    assert line.path.count("L") == len(values) - 1


def test_a_logarithmic_axis_has_equal_ratios_at_equal_distances() -> None:
    curve = Curve("dots", [(1, 1), (10, 1), (100, 1)], kind="dots", labels=["a", "b", "c"])
    (line,) = draw(Chart("chart", LOG, LINEAR, [curve, Curve("dots", [(5, 1)])])).lines[:1]
    places = [dot.x for dot in line.dots]
    assert math.isclose(places[1] - places[0], places[2] - places[1], abs_tol=0.2)
    assert line.path == ""
    assert [dot.text for dot in line.dots] == ["a: 1", "b: 1", "c: 1"]


def test_a_legend_names_each_kind_once() -> None:
    curves = [Curve("floor", [(1, 1)], 3, "floor"), Curve("a", [(1, 2)]), Curve("floor", [(1, 3)], 5, "floor")]
    legend = draw(Chart("chart", LINEAR, LINEAR, curves)).legend
    assert [(curve.name, curve.color) for curve in legend] == [("floor", 3), ("a", 0)]
