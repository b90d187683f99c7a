"""Makes the charts of ``bench latency``: times and rates of whole batches against their size and prompt length."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from trtllm_lite.bench.page.curves import (
    Figure,
    Report,
    counts_axis,
    plain_figure,
    points_of,
    positive,
    seconds,
    tokens_per_s,
    value_axis,
)
from trtllm_lite.pages.charts import NUM_COLORS, Axis, Chart, Curve, Kind

_PEERS = {"baseline": "transformers", "llama_cpp": "llama.cpp"}


@dataclass(frozen=True)
class _Side:
    """A field of shapes that is the axis of a chart, or that distinguishes its curves."""

    field: str
    title: str
    name: str

    def __call__(self, report: Report) -> float | None:
        return positive(report["shape"][self.field])


_BATCH = _Side("batch_size", "sequences side by side", "batch")
_PROMPT = _Side("input_len", "tokens of each prompt", "prompt")


@dataclass(frozen=True)
class _Picture:
    """A kind of chart: a figure of each report, with its floor or ceiling."""

    title: str
    across: _Side
    told_apart_by: _Side
    figure: str
    bound: Figure
    bound_name: str
    text: Callable[[float], str]


def latency_charts(reports: Sequence[Report], earlier: Sequence[Report]) -> list[Chart]:
    """Charts of ``reports``, with the curves of ``earlier`` ones if there are any."""
    charts = (_chart(picture, reports, earlier) for picture in _PICTURES)
    return [*(chart for chart in charts if chart), *_trade_off(reports, earlier)]


_first_floor = plain_figure("floor_time_to_first_token_s")
_step_floor = plain_figure("floor_inter_token_latency_s")


def _prefill_ceiling(report: Report) -> float | None:
    floor, shape = _first_floor(report), report["shape"]
    return None if floor is None else shape["batch_size"] * shape["input_len"] / floor


def _decode_ceiling(report: Report) -> float | None:
    floor = _step_floor(report)
    return None if floor is None else report["shape"]["batch_size"] / floor


_PICTURES = (
    _Picture("Time to first token", _PROMPT, _BATCH, "time_to_first_token_s", _first_floor, "floor", seconds),
    _Picture("Time per token", _BATCH, _PROMPT, "inter_token_latency_s", _step_floor, "floor", seconds),
    _Picture("Prefill", _PROMPT, _BATCH, "prefill_tokens_per_s", _prefill_ceiling, "ceiling", tokens_per_s),
    _Picture("Decode", _BATCH, _PROMPT, "decode_tokens_per_s", _decode_ceiling, "ceiling", tokens_per_s),
)


def _chart(picture: _Picture, reports: Sequence[Report], earlier: Sequence[Report]) -> Chart | None:
    """The chart that ``picture`` describes, or None if no report has the figure."""
    curves = list(_curves(picture, reports, earlier))
    if not curves:
        return None
    x = counts_axis(picture.across.title, (report["shape"][picture.across.field] for report in reports))
    return Chart(picture.title, x, value_axis(picture.text, curves), curves)


def _curves(picture: _Picture, reports: Sequence[Report], earlier: Sequence[Report]) -> Iterator[Curve]:
    side, figure = picture.told_apart_by, plain_figure(picture.figure)
    peers = [(entry, name) for entry, name in _PEERS.items() if any(report.get(entry) for report in reports)]
    for color, value in enumerate(sorted({report["shape"][side.field] for report in reports})):
        own, old = ([one for one in runs if one["shape"][side.field] == value] for runs in (reports, earlier))
        name, near = f"{side.name} {value}", color % NUM_COLORS
        found = [
            Curve(name, points_of(own, picture.across, figure), near),
            Curve(picture.bound_name, points_of(own, picture.across, picture.bound), near, "floor"),
            Curve("earlier run", points_of(old, picture.across, figure), near, "earlier"),
        ]
        for number, (entry, peer) in enumerate(peers, 1):
            points = points_of(own, picture.across, _of_peer(entry, picture.figure))
            found.append(Curve(f"{peer}, {name}", points, (near + 3 * number) % NUM_COLORS))
        yield from (curve for curve in found if curve.points)


def _of_peer(entry: str, figure: str) -> Figure:
    return lambda report: positive((report.get(entry) or {}).get(figure))


def _trade_off(reports: Sequence[Report], earlier: Sequence[Report]) -> Iterator[Chart]:
    """A chart of throughput against latency, if there are several batch sizes."""
    if len({report["shape"]["batch_size"] for report in reports}) == 1:
        return
    step, decode = plain_figure("inter_token_latency_s"), plain_figure("decode_tokens_per_s")
    drawn: list[tuple[Sequence[Report], Kind]] = [(reports, "measured"), (earlier, "earlier")]
    curves = []
    for color, length in enumerate(sorted({report["shape"]["input_len"] for report in reports})):
        for runs, kind in drawn:
            own = [report for report in runs if report["shape"]["input_len"] == length]
            own.sort(key=lambda report: report["shape"]["batch_size"])
            points = [(step(one), decode(one), one["shape"]["batch_size"]) for one in own]
            known = [(x, y, f"batch {batch}, prompt {length}") for x, y, batch in points if x and y]
            name = f"prompt {length}" if kind == "measured" else "earlier run"
            labels = [label for _, _, label in known]
            curves.append(Curve(name, [(x, y) for x, y, _ in known], color % NUM_COLORS, kind, labels))
    curves = [curve for curve in curves if curve.points]
    if curves:
        note = "Each dot is a batch size. Up and to the left is better."
        x = Axis("time per token", seconds)
        yield Chart("Throughput against latency", x, value_axis(tokens_per_s, curves), curves, note)
