"""Writes runs as a trace for https://ui.perfetto.dev: requests, steps, the device's part of each step, and kernels.

Source of the form: "Trace Event Format",
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from trtllm_lite.bench.figures import RequestRecord
from trtllm_lite.runtime.session.steps import RecordedSteps

Event = dict[str, Any]

_STEPS, _DEVICE = 1, 2  # the numbers of the tracks of a run
_KERNELS = 1  # the number of the track of a step


@dataclass(frozen=True)
class TracedRun:
    """A run's requests and steps; the instants of both are in seconds from its start."""

    name: str
    records: Sequence[RequestRecord]
    recorded: RecordedSteps = field(default_factory=RecordedSteps)


@dataclass(frozen=True)
class TracedStep:
    """A step that was timed kernel by kernel: name and seconds of each, in order."""

    name: str
    kernels: Sequence[tuple[str, float]]


@dataclass
class Trace:
    """Collects runs and steps, each of which becomes a process of the trace."""

    runs: list[TracedRun] = field(default_factory=list)
    steps: list[TracedStep] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """The trace as JSON; instants are in microseconds."""
        events = [event for process, run in enumerate(self.runs, 1) for event in _events(process, run)]
        for process, step in enumerate(self.steps, len(self.runs) + 1):
            events += _kernels(process, step)
        left_out = sum(run.recorded.num_left_out for run in self.runs)
        return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"steps left out": left_out}}


def _events(process: int, run: TracedRun) -> Iterator[Event]:
    yield _name("process_name", process, 0, run.name)
    if run.recorded.steps:
        yield _name("thread_name", process, _STEPS, "steps")
        yield from _steps(process, run.recorded)
    if any(step.compute_seconds for step in run.recorded.steps):
        yield _name("thread_name", process, _DEVICE, "device")
    for row, record in enumerate(run.records):
        yield from _request(process, row, record)


def _kernels(process: int, step: TracedStep) -> Iterator[Event]:
    yield _name("process_name", process, 0, step.name)
    yield _name("thread_name", process, _KERNELS, "kernels")
    whole, begin = sum(seconds for _, seconds in step.kernels), 0.0
    for name, seconds in step.kernels:
        yield _slice(process, _KERNELS, name, begin, begin + seconds, {"share of the step": round(seconds / whole, 4)})
        begin += seconds


def _name(kind: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _steps(process: int, recorded: RecordedSteps) -> Iterator[Event]:
    for number, step in enumerate(recorded.steps):
        prompts = step.num_tokens - step.num_decode_tokens
        name = "decode" if not prompts else "prefill" if not step.num_decode_tokens else "prefill and decode"
        tokens = {"of prompts": prompts, "of answers": step.num_decode_tokens}
        facts = {"step": number, "requests": step.num_rows, "host_us": _micros(step.host_seconds)}
        facts |= {f"tokens {kind}": count for kind, count in tokens.items()}
        yield _slice(process, _STEPS, name, step.begin, step.end, facts)
        if step.compute_seconds:
            yield _slice(process, _DEVICE, name, step.end - step.compute_seconds, step.end, {"step": number})
        yield {"ph": "C", "name": "tokens of a step", "pid": process, "ts": _micros(step.begin), "args": tokens}


def _slice(process: int, thread: int, name: str, begin: float, end: float, args: dict[str, Any]) -> Event:
    span = {"ts": _micros(begin), "dur": _micros(end - begin)}
    return {"ph": "X", "name": name, "pid": process, "tid": thread, **span, "args": args}


def _request(process: int, row: int, record: RequestRecord) -> Iterator[Event]:
    """The span of a request and, within it, the spans of its phases. Spans of several requests may overlap."""
    first, last = record.token_times_s[0], record.token_times_s[-1]
    facts = {"prompt tokens": record.prompt_len, "output tokens": record.output_len, "priority": record.priority}
    if record.num_cached_tokens is not None:
        facts["prompt tokens found in the cache"] = record.num_cached_tokens
    begun = record.sent_s + (record.queue_s or 0.0)
    spans = [
        (f"request {row}", record.arrival_s, last, facts),
        ("held back", record.arrival_s, record.sent_s, {}),
        ("queued", record.sent_s, begun, {}),
        ("prefill", begun, first, {}),
        ("decode", first, last, {}),
    ]
    for name, begin, end, args in spans:
        if end > begin or args:
            both = {"name": name, "cat": "request", "id": f"{process}.{row}", "pid": process, "tid": 0}
            yield {"ph": "b", **both, "ts": _micros(begin), "args": args}
            yield {"ph": "e", **both, "ts": _micros(end)}


def _micros(seconds: float) -> float:
    return round(seconds * 1e6, 3)
