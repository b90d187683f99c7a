"""Makes the charts of many requests: their latencies by percentile, and the run over time."""

from collections.abc import Iterator, Mapping
from typing import Any

from trtllm_lite.bench.figures import PERCENTILES
from trtllm_lite.bench.page.curves import Report, number, plain_figure, positive, seconds, tokens_per_s, value_axis
from trtllm_lite.pages.charts import NUM_COLORS, Axis, Chart, Curve, Point

_LATENCIES = {
    "time_to_first_token_s": "Time to first token",
    "time_per_output_token_s": "Time per output token",
    "inter_token_latency_s": "Inter-token latency",
    "end_to_end_latency_s": "End-to-end latency",
    "queue_s": "Time in the queue",
    "held_back_s": "Time held back unsent",
}


def serving_charts(report: Report, earlier: Report | None) -> Iterator[Chart]:
    """Charts of a report, with the curves of an ``earlier`` one if there is one."""
    for name, title in _LATENCIES.items():
        curves = [curve for curve in _percentiles(report, earlier, name) if curve.points]
        if curves:
            yield Chart(title, _RANKS, value_axis(seconds, curves), curves)
    yield from _over_time(report, earlier)


def _one_in(rank: float) -> float:
    """N, where one of N requests is slower than the percentile ``rank``: 2 for the 50th, 100 for the 99th."""
    return 100 / (100 - rank)


# The axis is logarithmic in N, where one of N requests is slower than the percentile.
_RANKS = Axis(
    "percentile", lambda one_in: f"p{100 - 100 / one_in:.0f}", log=True, ticks=tuple(map(_one_in, PERCENTILES))
)


def _percentiles(report: Report, earlier: Report | None, name: str) -> Iterator[Curve]:
    yield Curve("all requests" if report["by_priority"] else "now", _ranked(report["figures"].get(name)))
    for color, (priority, latencies) in enumerate(report["by_priority"].items(), 1):
        yield Curve(f"priority {priority}", _ranked(latencies.get(name)), color % NUM_COLORS)
    if earlier is not None:
        yield Curve("earlier run", _ranked(earlier["figures"].get(name)), 0, "earlier")


def _ranked(distribution: Mapping[str, Any] | None) -> list[Point]:
    if not isinstance(distribution, Mapping):
        return []
    values = [(_one_in(rank), positive(distribution.get(f"p{rank}"))) for rank in PERCENTILES]
    return [(one_in, value) for one_in, value in values if value is not None]


def _over_time(report: Report, earlier: Report | None) -> Iterator[Chart]:
    if "timeline" not in report:
        return
    time = Axis("time", seconds)
    rates = [Curve("now", _intervals(report, "output_tokens_per_s"))]
    ceiling = plain_figure("ceiling_output_tokens_per_s")(report)
    if ceiling is not None:
        rates.append(Curve("ceiling", [(x, ceiling) for x, _ in rates[0].points], 2, "floor"))
    running = [Curve("now", _intervals(report, "running"))]
    if earlier is not None and "timeline" in earlier:
        rates.append(Curve("earlier run", _intervals(earlier, "output_tokens_per_s"), 1, "earlier"))
        running.append(Curve("earlier run", _intervals(earlier, "running"), 1, "earlier"))
    yield Chart("Output tokens per second", time, Axis("", tokens_per_s), rates)
    yield Chart("Requests under way", time, Axis("", number), running)


def _intervals(report: Report, name: str) -> list[Point]:
    """A point in the middle of each interval of time."""
    width = report["timeline"]["interval_s"]
    return [((place + 0.5) * width, float(value)) for place, value in enumerate(report["timeline"][name])]
