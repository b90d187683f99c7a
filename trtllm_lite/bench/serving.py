"""Serves requests in real time: each is sent at its time, and the arrival of every token is recorded."""

import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from trtllm_lite.bench.figures import RequestRecord
from trtllm_lite.bench.workload import PlannedRequest
from trtllm_lite.errors import EngineError
from trtllm_lite.runtime.session.experts import ExpertCounts, counted_since
from trtllm_lite.runtime.session.notifier import Notifier
from trtllm_lite.runtime.session.request import Request
from trtllm_lite.runtime.session.request_handle import RequestHandle
from trtllm_lite.runtime.session.sampling_params import SamplingParams
from trtllm_lite.runtime.session.session import Session
from trtllm_lite.runtime.session.stats import Speculation, Stats
from trtllm_lite.runtime.session.steps import RecordedSteps

_SAMPLE_SECONDS = 0.05
_MOST_STEPS = 1 << 19  # the most steps that are recorded for a trace
_CERTAIN = 100.0  # a logit bias with which no other token is likely
OnFinished = Callable[[int, int], None]  # number of requests that have finished, of how many


@dataclass
class Run:
    """The records of the requests, in their order; ``outputs`` are the generated token ids.

    ``seconds`` counts from the first submission to the last token. ``kv_use`` are samples, one every 50 ms, of the
    share of the KV cache's blocks that requests held. ``steps`` is the number of steps of the engine. Each took
    ``host_s_per_step`` seconds of the event loop's own time: a median of the means over 50 ms, so that one step in
    which hundreds of requests end together does not change it. A step that only decodes took
    ``host_s_per_decode_step``, the median of all of these (None if there was no such step). ``speculation`` counts the
    draft tokens of the run, ``experts`` the choices of routers, by layer. ``recorded`` are single steps, if these were
    to be recorded; their instants are in seconds from the start of the run.
    """

    records: list[RequestRecord]
    outputs: list[list[int]]
    seconds: float
    steps: int
    host_s_per_step: float
    host_s_per_decode_step: float | None
    kv_use: list[float]
    speculation: Speculation
    experts: list[ExpertCounts]
    recorded: RecordedSteps

    @property
    def seconds_behind_first_tokens(self) -> float:
        """Seconds from the step after which all requests have their first tokens to the last token of all requests.

        The former time comes from the engine's own clock, so that a thread that wakes up late does not shorten the
        result.
        """
        firsts = [record.sent_s + record.first_step_s for record in self.records if record.first_step_s is not None]
        return max(record.token_times_s[-1] for record in self.records) - max(firsts)


@dataclass
class _Sent:
    """A running request and the times of its tokens, in seconds from the start of the run."""

    row: int
    handle: RequestHandle
    sent_s: float
    token_times_s: list[float] = field(default_factory=list)

    @property
    def has_news(self) -> bool:
        return self.handle.has(len(self.token_times_s))


def serve(
    session: Session,
    requests: Sequence[PlannedRequest],
    *,
    concurrency: int | None = None,
    on_finished: OnFinished | None = None,
    record_steps: bool = False,
) -> Run:
    """Send ``requests`` (sorted by arrival), at most ``concurrency`` outstanding at a time, and wait for all.

    Raises EngineError if a request fails.
    """
    if record_steps:
        session.record_steps(_MOST_STEPS)
    return _Client(session, requests, concurrency or len(requests), on_finished).run()


def host_figure(runs: Sequence[Run]) -> dict[str, float]:
    """The median of ``host_s_per_decode_step`` over the runs, by its name; empty if no step was decode-only."""
    found = [run.host_s_per_decode_step for run in runs if run.host_s_per_decode_step is not None]
    return {"host_s_per_decode_step": statistics.median(found)} if found else {}


class _Client:
    """Sends and receives in one thread, which sleeps until the next token or arrival."""

    def __init__(
        self, session: Session, requests: Sequence[PlannedRequest], concurrency: int, on_finished: OnFinished | None
    ) -> None:
        self._session = session
        self._requests = requests
        self._prepared = [_request(planned) for planned in requests]
        self._concurrency = concurrency
        self._on_finished = on_finished
        self._notifier = Notifier()
        self._unsent = deque(range(len(requests)))
        self._running: list[_Sent] = []
        self._records: dict[int, RequestRecord] = {}
        self._outputs: dict[int, list[int]] = {}
        self._samples: list[Stats] = []
        self._next_sample_s = 0.0

    def run(self) -> Run:
        """Implements :func:`serve`."""
        before, chosen_before = self._session.stats(), self._session.expert_counts()
        self._begin = time.perf_counter()
        while self._unsent or self._running:
            self._send_due()
            self._receive()
            self._sample()
        self._samples.append(self._session.stats())
        marks = [before, *self._samples]
        rows = range(len(self._requests))
        first = min(record.sent_s for record in self._records.values())
        return Run(
            records=[self._records[row] for row in rows],
            outputs=[self._outputs[row] for row in rows],
            seconds=max(record.token_times_s[-1] for record in self._records.values()) - first,
            steps=self._samples[-1].num_steps - before.num_steps,
            host_s_per_step=_host_s_per_step(marks),
            host_s_per_decode_step=median_between(before.decode_host_times, self._samples[-1].decode_host_times),
            speculation=self._samples[-1].speculation.since(before.speculation),
            experts=counted_since(self._session.expert_counts(), chosen_before),
            recorded=_since(self._session.take_steps(), self._begin),
            kv_use=[stats.num_used_blocks / self._session.limits.num_blocks for stats in self._samples],
        )

    def _now(self) -> float:
        return time.perf_counter() - self._begin

    def _may_send(self, num_sending: int = 0) -> bool:
        return bool(self._unsent) and len(self._running) + num_sending < self._concurrency

    def _send_due(self) -> None:
        """Submit all requests that are due and allowed."""
        now = self._now()
        rows: list[int] = []
        while self._may_send(len(rows)) and self._requests[self._unsent[0]].arrival_s <= now:
            rows.append(self._unsent.popleft())
        if rows:
            handles = self._session.submit_all([self._prepared[row] for row in rows], self._notifier)
            self._running += [_Sent(row, handle, now) for row, handle in zip(rows, handles, strict=True)]

    def _receive(self) -> None:
        """Wait for tokens, or until the next arrival, and record what came."""
        until = self._next_sample_s
        if self._may_send():
            until = min(until, self._requests[self._unsent[0]].arrival_s)
        if not self._notifier.wait_until(self._has_news, max(until - self._now(), 0.0)):
            return
        now, running = self._now(), self._running
        self._running = []
        for sent in running:
            ended = sent.handle.ended  # read before the responses: a request that has ended has all of them
            sent.token_times_s += [now] * (len(sent.handle.responses) - len(sent.token_times_s))
            if ended:
                self._end(sent)
            else:
                self._running.append(sent)

    def _has_news(self) -> bool:
        return any(sent.has_news for sent in self._running)

    def _end(self, sent: _Sent) -> None:
        request = self._requests[sent.row]
        tokens = [response.token_id for response in sent.handle.result() if response.token_id is not None]
        if len(tokens) != request.output_len:
            raise EngineError(
                f"request {sent.row} ended after {len(tokens)} of {request.output_len} tokens: "
                "something else cancelled it; benchmark a session that nobody else uses"
            )
        timings = sent.handle.timings
        self._outputs[sent.row] = tokens
        self._records[sent.row] = RequestRecord(
            arrival_s=request.arrival_s,
            sent_s=sent.sent_s,
            token_times_s=sent.token_times_s,
            prompt_len=request.prompt_len,
            priority=request.priority,
            queue_s=timings.queue_seconds,
            num_cached_tokens=timings.num_cached_tokens,
            num_preemptions=timings.num_preemptions,
            first_step_s=timings.first_token_seconds,
        )
        if self._on_finished:
            self._on_finished(len(self._records), len(self._requests))

    def _sample(self) -> None:
        if self._now() >= self._next_sample_s:
            self._samples.append(self._session.stats())
            self._next_sample_s = self._now() + _SAMPLE_SECONDS


def _since(recorded: RecordedSteps, begin: float) -> RecordedSteps:
    """Steps with instants that count from ``begin``."""
    steps = [step._replace(begin=step.begin - begin, end=step.end - begin) for step in recorded.steps]
    return RecordedSteps(steps, recorded.num_left_out)


def _host_s_per_step(samples: Sequence[Stats]) -> float:
    """Median, over the intervals between ``samples``, of the mean time per step; 0 if there was no step."""
    means = [
        (after.host_seconds - before.host_seconds) / (after.num_steps - before.num_steps)
        for before, after in pairwise(samples)
        if after.num_steps > before.num_steps
    ]
    return statistics.median(means) if means else 0.0


def median_between(before: Mapping[float, int], after: Mapping[float, int]) -> float | None:
    """Median of the values counted in ``after`` but not yet in ``before``; None if there are none."""
    counts = {value: count - before.get(value, 0) for value, count in sorted(after.items())}
    left = (sum(counts.values()) + 1) // 2
    for value, count in counts.items():
        left -= count
        if left <= 0 < count:
            return value
    return None


def _request(planned: PlannedRequest) -> Request:
    """The request for a greedy continuation without penalties, of exactly the planned length."""
    params = SamplingParams(
        max_tokens=planned.output_len,
        temperature=0.0,
        repetition_penalty=1.0,
        logit_bias=None if planned.only_token is None else {planned.only_token: _CERTAIN},
        ignore_eos=True,
        detokenize=planned.detokenize,
    )
    return Request(planned.prompt_ids, params, priority=planned.priority, lora_request=planned.lora)
