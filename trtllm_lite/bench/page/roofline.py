"""Makes the roofline of ``bench latency``: operations per second against operations per byte.

Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore
architectures", https://doi.org/10.1145/1498765.1498785.
"""

from collections.abc import Iterator, Sequence
from functools import partial

from trtllm_lite.bench.page.curves import Report, plain_figure
from trtllm_lite.common.units import short
from trtllm_lite.pages.charts import Axis, Chart, Curve, Point

_MARGIN = 2.0  # factor by which the roof extends to the left and the right of all points


def roofline(reports: Sequence[Report], earlier: Sequence[Report]) -> Iterator[Chart]:
    """The chart, if the reports have operations and bytes and the device's bandwidth is known."""
    steps, prompts = _steps(reports), _prompts(reports)
    bandwidth = plain_figure("read_bandwidth_bytes_per_s")(reports[-1])
    if bandwidth is None or not steps:
        return
    old = {**_steps(earlier), **{f"{label}, first token": point for label, point in _prompts(earlier).items()}}
    intensities = [x for x, _ in [*steps.values(), *prompts.values(), *old.values()]]
    roof = _roof(bandwidth, plain_figure("peak_operations_per_s")(reports[-1]), min(intensities), max(intensities))
    named = ("decode steps", 0, steps), ("first tokens", 1, prompts), ("earlier run", 3, old)
    curves = [Curve("roof", roof, 2, "floor", labels=["roof"] * len(roof))]
    curves += [
        Curve(name, list(points.values()), color, "dots", list(points)) for name, color, points in named if points
    ]
    yield Chart(
        "Roofline",
        Axis("operations for each byte read", partial(short, unit=""), log=True),
        Axis("operations per second", partial(short, unit="FLOPS"), log=True),
        curves,
        "Left of the bend the memory bounds the rate, right of it the arithmetic. Bytes are the least that has to be "
        "read: weights and KV cache.",
    )


def _roof(bandwidth: float, peak: float | None, least: float, most: float) -> list[Point]:
    """The corners of the roof over the intensities from ``least`` to ``most``."""
    left, right = least / _MARGIN, most * _MARGIN
    if peak is None:
        return [(left, left * bandwidth), (right, right * bandwidth)]
    bend = peak / bandwidth
    left, right = min(left, bend / _MARGIN), max(right, bend * _MARGIN)
    return [(left, left * bandwidth), (bend, peak), (right, peak)]


def _steps(reports: Sequence[Report]) -> dict[str, Point]:
    return _points(reports, "step_operations", ("weight_bytes_per_step", "kv_bytes_per_step"), "inter_token_latency_s")


def _prompts(reports: Sequence[Report]) -> dict[str, Point]:
    return _points(reports, "prompts_operations", ("prompts_weight_bytes",), "time_to_first_token_s")


def _points(reports: Sequence[Report], operations: str, reading: Sequence[str], time: str) -> dict[str, Point]:
    """Intensity and rate of each report that has all the numbers, by its shape."""
    points = {}
    for report in reports:
        done, taken = plain_figure(operations)(report), plain_figure(time)(report)
        read = [plain_figure(name)(report) for name in reading]
        if done and taken and all(read):
            label = f"batch {report['shape']['batch_size']}, prompt {report['shape']['input_len']}"
            points[label] = (done / sum(part or 0 for part in read), done / taken)
    return points
