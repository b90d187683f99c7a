"""The pages of ``bench --html`` and ``eval --html``: what is drawn, and that they are safe and fit into a browser."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.browser import NAMES, browsing, find_browser
from tests.unit.bench.reports import HOSTILE, latency_report, serving_report
from trtllm_lite.bench.compare import Tolerance, changes, read_reports
from trtllm_lite.bench.page import Comparison, render_page
from trtllm_lite.bench.page.latency import latency_charts
from trtllm_lite.bench.page.roofline import roofline
from trtllm_lite.bench.page.serving import serving_charts
from trtllm_lite.errors import ArgumentError
from trtllm_lite.evaluation.evaluate import AgainstReference, Evaluation
from trtllm_lite.evaluation.page import Evaluated
from trtllm_lite.evaluation.page import render_page as accuracy_page

SHAPES = [(batch, prompt) for batch in (1, 8, 64) for prompt in (16, 256)]
NOW = [latency_report(*shape, 2.0) for shape in SHAPES]
EARLIER = [latency_report(*shape) for shape in SHAPES]


def near(points: list[tuple[float, float]]) -> Any:
    """A value that equals ``points`` up to rounding."""
    return [pytest.approx(point) for point in points]


def _compared(now: list[dict[str, Any]], earlier: list[dict[str, Any]]) -> list[Comparison]:
    pairs = zip(now, earlier, strict=True)
    return [Comparison(old, changes(new["figures"], old["figures"], Tolerance())) for new, old in pairs]


def test_latencies_are_drawn_with_floors_peers_and_the_earlier_run() -> None:
    charts = {chart.title: chart for chart in latency_charts(NOW, EARLIER)}
    first = {(curve.name, curve.kind, curve.color): curve.points for curve in charts["Time to first token"].curves}
    assert first["batch 8", "measured", 1] == near([(16, 0.256), (256, 4.096)])
    assert first["floor", "floor", 1] == near([(16, 0.064), (256, 1.024)])
    assert first["earlier run", "earlier", 1] == near([(16, 0.128), (256, 2.048)])
    assert charts["Time to first token"].x.ticks == (16, 256)
    decode = {(curve.name, curve.color): curve.points for curve in charts["Decode"].curves}
    assert decode["prompt 16", 0] == near([(1, 125), (8, 1000), (64, 8000)])
    assert decode["ceiling", 0] == near([(1, 500), (8, 4000), (64, 32000)])
    assert [y for _, y in decode["transformers, prompt 16", 3]] == [50, 50, 50]
    assert "Throughput against latency" not in {chart.title for chart in latency_charts(NOW[:2], [])}


def test_the_roof_bends_where_arithmetic_becomes_the_bound() -> None:
    (chart,) = roofline(NOW, EARLIER)
    curves = {curve.name: curve for curve in chart.curves}
    (_, slope), (bend, peak), (_, right) = curves["roof"].points
    assert (bend, peak, right) == (40, 2e12, 2e12)
    assert slope < peak
    step = dict(zip(curves["decode steps"].labels, curves["decode steps"].points, strict=True))
    assert step["batch 8, prompt 256"] == pytest.approx((3.2e9 / (1e8 + 8 * 256e3), 3.2e9 / 8e-3))
    without = copy.deepcopy(NOW)
    for report in without:
        del report["figures"]["peak_operations_per_s"]
    assert all(y == pytest.approx(5e10 * x) for x, y in next(roofline(without, [])).curves[0].points)
    del without[-1]["figures"]["read_bandwidth_bytes_per_s"]
    assert list(roofline(without, [])) == []


def test_serving_is_drawn_by_percentile_and_over_time() -> None:
    report = serving_report()
    charts = {chart.title: chart for chart in serving_charts(report, serving_report(3.0))}
    curves = {curve.name: curve.points for curve in charts["Time to first token"].curves}
    assert list(curves) == ["all requests", "priority 1", "priority 0", "earlier run"]
    ranks = report["figures"]["time_to_first_token_s"]
    assert curves["all requests"] == near(
        [(2, ranks["p50"]), (10, ranks["p90"]), (20, ranks["p95"]), (100, ranks["p99"])]
    )
    assert [*map(charts["Time to first token"].x.text, (2, 10, 20, 100))] == ["p50", "p90", "p95", "p99"]
    rates = {curve.name: curve.points for curve in charts["Output tokens per second"].curves}
    assert [y for _, y in rates["now"]] == report["timeline"]["output_tokens_per_s"]
    assert {y for _, y in rates["ceiling"]} == {200.0}
    assert max(y for _, y in {c.name: c for c in charts["Requests under way"].curves}["earlier run"].points) > 5


def test_earlier_files_hold_numbers_over_time(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps([serving_report()]))
    assert read_reports(path)
    for broken in ([], {"interval_s": "x"}, {"interval_s": 1.0, "running": 3}, {"interval_s": 1.0, "running": ["<b>"]}):
        path.write_text(json.dumps([{**serving_report(), "timeline": broken}]))
        with pytest.raises(ArgumentError, match="not a list of benchmark reports"):
            read_reports(path)


def _evaluated(name: str) -> Evaluated:
    against = AgainstReference(21.5, 0.0125, 0.0031, 0.957)
    return Evaluated(f"engines/{name}", name, 163_577_856, Evaluation(HOSTILE, 508, 4, 128, 21.77, against))


@pytest.mark.skipif(find_browser() is None, reason=f"no browser on PATH: expected {', '.join(NAMES)}")
def test_pages_in_a_browser(tmp_path: Path) -> None:
    pages = {
        "accuracy": accuracy_page([_evaluated("int8_wo"), _evaluated(HOSTILE)], None),
        "latency": render_page(NOW, _compared(NOW, EARLIER)),
        "one": render_page([latency_report(1, 16)], []),
        "serving": render_page([serving_report()], _compared([serving_report()], [serving_report(3.0)])),
    }
    browser = find_browser()
    assert browser is not None
    with browsing(browser) as page:
        for name, text in pages.items():
            path = tmp_path / f"{name}.html"
            path.write_text(text)
            for width in (390, 1440):
                page.resize(width)
                page.open(path)
                page.evaluate("document.querySelectorAll('details').forEach(item => { item.open = true; })")
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (name, width)
                cut = """[...document.querySelectorAll('.chart text')].filter(text => {
                    const [own, all] = [text, text.ownerSVGElement].map(item => item.getBoundingClientRect());
                    return own.left < all.left - 1 || own.right > all.right + 1; }).map(text => text.textContent)"""
                assert page.evaluate(cut) == [], (name, width)
            assert page.evaluate("document.querySelectorAll('.chart').length") >= (3 if name == "accuracy" else 5)
            assert page.evaluate("typeof window.hacked") == "undefined"
            assert "\x1b" not in text
        assert page.complaints == []
        assert page.requests == {(tmp_path / f"{name}.html").as_uri() for name in pages}
        verdicts = "document.querySelectorAll('#change-table tbody .better').length"
        assert page.evaluate(verdicts) > 0
