"""Traces of made-up runs, read as viewers of the format do: spans are matched and nested, and each has one track."""

import json
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_lite.bench.figures import RequestRecord
from trtllm_lite.bench.trace import Trace, TracedRun, TracedStep
from trtllm_lite.runtime.session.steps import RecordedSteps, StepRecord

STEPS = [
    StepRecord(0.5, 0.75, 0.1, 0.125, 2, 30, 0),
    StepRecord(0.75, 1.0, 0.1, 0.0, 3, 9, 2),
    StepRecord(2, 3, 0, 0, 1, 1, 1),
]
REQUESTS = st.tuples(*[st.floats(0, 3)] * 3, st.lists(st.floats(1e-6, 2), min_size=1, max_size=6))


def spans_of(events: list[dict[str, Any]]) -> dict[tuple[int, str], list[tuple[str, float, float]]]:
    """The spans of each request, outermost span last. Asserts that each span ends, and within the span around it."""
    found, open_spans = defaultdict(list), defaultdict(list)
    for event in (event for event in events if event["ph"] in "be"):
        key = event["pid"], event["id"]
        if event["ph"] == "b":
            open_spans[key].append(event)
        else:
            begun = open_spans[key].pop()
            assert (begun["name"], begun["cat"]) == (event["name"], event["cat"])
            assert begun["ts"] <= event["ts"]
            found[key].append((event["name"], begun["ts"], event["ts"]))
    assert not any(open_spans.values())
    return found


@given(st.lists(REQUESTS, min_size=1, max_size=5))
def test_requests_are_spans_with_what_they_waited_for_inside(drawn: list[tuple]) -> None:
    records = []
    for arrival, held, queued, gaps in drawn:
        sent = arrival + held
        times = [sent + queued + sum(gaps[: place + 1]) for place in range(len(gaps))]
        records.append(RequestRecord(arrival, sent, times, 9, queue_s=queued))
    events = Trace([TracedRun("run", records)]).document()["traceEvents"]
    found = spans_of(events)
    assert len(found) == len(records)
    for row, record in enumerate(records):
        spans = {name: (begin, end) for name, begin, end in found[1, f"1.{row}"]}
        begin, end = spans[f"request {row}"]
        assert (begin, end) == pytest.approx((record.arrival_s * 1e6, record.token_times_s[-1] * 1e6), abs=1e-2)
        inner = sorted(span for name, span in spans.items() if not name.startswith("request"))
        assert sum(last - first for first, last in inner) == pytest.approx(end - begin, abs=1e-1)


def test_steps_are_slices_on_tracks_of_host_and_device() -> None:
    runs = [TracedRun("first", []), TracedRun("second", [], RecordedSteps(STEPS, 4))]
    document = json.loads(json.dumps(Trace(runs).document()))
    assert document["otherData"] == {"steps left out": 4}
    events = document["traceEvents"]
    names = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {(1, 0): "first", (2, 0): "second", (2, 1): "steps", (2, 2): "device"}
    slices = [(event["tid"], event["name"], event["ts"], event["dur"]) for event in events if event["ph"] == "X"]
    assert slices == [
        (1, "prefill", 5e5, 2.5e5),
        (2, "prefill", 6.25e5, 1.25e5),
        (1, "prefill and decode", 7.5e5, 2.5e5),
        (1, "decode", 2e6, 1e6),
    ]
    counted = [tuple(event["args"].values()) for event in events if event["ph"] == "C"]
    assert counted == [(30, 0), (7, 2), (0, 1)]


def test_kernels_of_a_step_follow_each_other() -> None:
    step = TracedStep("kernels of a step", [("RmsNorm", 0.25), ("Linear", 0.5), ("RmsNorm", 0.25)])
    events = Trace([TracedRun("run", [])], [step]).document()["traceEvents"]
    named = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["ph"] == "M"}
    assert named == {(1, 0): "run", (2, 0): "kernels of a step", (2, 1): "kernels"}
    slices = [(event["name"], event["ts"], event["dur"], event["args"]) for event in events if event["ph"] == "X"]
    share = "share of the step"
    assert slices == [
        ("RmsNorm", 0, 2.5e5, {share: 0.25}),
        ("Linear", 2.5e5, 5e5, {share: 0.5}),
        ("RmsNorm", 7.5e5, 2.5e5, {share: 0.25}),
    ]
