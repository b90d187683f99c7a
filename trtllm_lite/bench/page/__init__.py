"""Renders the reports of a benchmark as one HTML page of curves and tables, with an earlier run beside them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_lite.bench.compare import Change, Verdict
from trtllm_lite.bench.metrics import METRICS
from trtllm_lite.bench.page.latency import latency_charts
from trtllm_lite.bench.page.roofline import roofline
from trtllm_lite.bench.page.serving import serving_charts
from trtllm_lite.pages.charts import Chart
from trtllm_lite.pages.document import render

Report = Mapping[str, Any]
_ABOUT = ("shape", "engine", "runtime", "terms", "machine", "versions", "server")
_CLASSES = {Verdict.REGRESSED: "worse", Verdict.IMPROVED: "better", Verdict.WITHIN: "dim"}


@dataclass(frozen=True)
class Comparison:
    """The report of an earlier run, and how each of its figures has changed."""

    baseline: Report
    changes: Sequence[Change]


@dataclass(frozen=True)
class Row:
    """A figure of a table: its name, its numbers by part (the part of a plain figure is empty)."""

    title: str
    cells: Mapping[str, str]


def label(report: Report) -> str:
    """The name of a report among those of one run: the shape of its batch, or the benchmark."""
    shape = report["shape"]
    batch = f", batch {shape['batch_size']}, prompt {shape['input_len']}" if "batch_size" in shape else ""
    return f"{report['benchmark']}{batch}"


def render_page(reports: Sequence[Report], comparisons: Sequence[Comparison]) -> str:
    """The page of ``reports`` of one run; ``comparisons`` has one for each report, or none at all."""
    return render(
        Path(__file__).parent,
        reports=reports,
        comparisons=comparisons,
        charts=_charts(reports, [comparison.baseline for comparison in comparisons]),
        about={name: reports[0][name] for name in _ABOUT if reports[0].get(name)},
        label=label,
        distributions=_distributions,
        plain=_plain,
        metrics=METRICS,
        verdict_class=_CLASSES,
    )


def _charts(reports: Sequence[Report], earlier: Sequence[Report]) -> list[Chart]:
    if "batch_size" in reports[0]["shape"]:
        return [*latency_charts(reports, earlier), *roofline(reports, earlier)]
    baselines: Sequence[Report | None] = earlier or [None] * len(reports)
    pairs = zip(reports, baselines, strict=True)
    return [chart for report, baseline in pairs for chart in serving_charts(report, baseline)]


def _distributions(figures: Mapping[str, Any]) -> list[Row]:
    found = {name: value for name, value in figures.items() if isinstance(value, Mapping) and value}
    return [
        Row(METRICS[name].title, {part: METRICS[name].text(number) for part, number in value.items()})
        for name, value in found.items()
    ]


def _plain(figures: Mapping[str, Any]) -> list[Row]:
    found = {name: value for name, value in figures.items() if not isinstance(value, Mapping)}
    return [Row(METRICS[name].title, {"": METRICS[name].text(value)}) for name, value in found.items()]
