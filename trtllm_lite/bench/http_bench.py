"""Carries out the measurement of ``bench serve``: sends a workload to a server over HTTP."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trtllm_lite.bench.figures import (
    RequestRecord,
    cost_figures,
    goodput_figures,
    priority_figures,
    serving_figures,
)
from trtllm_lite.bench.http_client.answer import Answer
from trtllm_lite.bench.http_client.bodies import Asking, Decode
from trtllm_lite.bench.http_client.load import Asked, Failure, Outcome
from trtllm_lite.bench.http_client.processes import OnFinished, deal, run_processes
from trtllm_lite.bench.http_client.server import Server
from trtllm_lite.bench.timeline import timeline
from trtllm_lite.bench.trace import Trace, TracedRun
from trtllm_lite.bench.workload import PlannedRequest, Workload
from trtllm_lite.errors import ArgumentError

_OTHER_SEED = 1 << 32  # makes prompts of the warm-up differ from those of any measurement
_OF_TOKENS = ("time_to_first_token_s", "inter_token_latency_s", "time_per_output_token_s")


@dataclass(frozen=True)
class ServerLimits:
    """The longest sequence and prompt that a server accepts, which bound the lengths of random requests."""

    max_seq_len: int
    max_input_len: int

    @property
    def cache_len(self) -> int:
        """Implements ``workload.LengthLimits``."""
        return self.max_seq_len


@dataclass(frozen=True)
class Prompts:
    """Random tokens below ``vocab_size``, as token ids or as the text that ``decode`` makes of them."""

    vocab_size: int
    limits: ServerLimits
    decode: Decode | None = None


def measure_server(
    server: Server,
    workload: Workload,
    prompts: Prompts,
    asking: Asking,
    objectives: Mapping[str, float],
    price_per_hour: float | None,
    *,
    num_client_processes: int,
    num_warmups: int,
    on_finished: OnFinished | None = None,
    trace: Trace | None = None,
) -> dict[str, Any]:
    """Send ``workload`` to ``server`` from ``num_client_processes`` processes, after ``num_warmups`` other requests.

    Returns parts of a report: ``figures`` of the requests that succeeded, the failed ones counted; ``by_priority``; the
    ``timeline``; ``errors``, each kind with its count and an example; ``client_cpu_shares`` of the processes. If no
    request succeeded, the number of failures is the only figure, and there is no timeline. ``trace`` collects the
    requests that succeeded, as the client saw them.
    """
    if not asking.stream and {"ttft", "tpot"} & set(objectives):
        raise ArgumentError("the goodput objectives ttft and tpot need a stream of tokens: use stream, or only e2el")
    planned = workload.requests(prompts.vocab_size, prompts.limits)
    asked = _asked(server, planned, prompts, asking)
    warm_up = _warm_up(server, workload, prompts, asking, num_warmups)
    load = run_processes(deal(server, asked, warm_up, workload.concurrency, num_client_processes), on_finished)
    records = [
        _record(outcome, outcome.result, planned[outcome.row], load.begin)
        for outcome in load.outcomes
        if isinstance(outcome.result, Answer)
    ]
    figures: dict[str, Any] = {"failed_requests": len(planned) - len(records)}
    by_priority: dict[str, Any] = {}
    over_time: dict[str, Any] = {}
    if trace is not None:
        trace.runs.append(TracedRun(server.name, records))
    if records:
        over_time = {"timeline": timeline(records)}
        figures |= _figures(records, asking.stream, objectives, price_per_hour)
        by_priority = priority_figures(records)
    figures["client_cpu_share"] = max(load.cpu_shares)
    errors = _errors(load.outcomes)
    return {
        "figures": figures,
        "by_priority": by_priority,
        **over_time,
        "errors": errors,
        "client_cpu_shares": load.cpu_shares,
    }


def _asked(server: Server, planned: Sequence[PlannedRequest], prompts: Prompts, asking: Asking) -> list[Asked]:
    return [
        Asked(
            row=row,
            arrival_s=request.arrival_s,
            request=server.request("POST", asking.endpoint, asking.body(request, prompts.decode)),
            stream=asking.stream,
            output_len=request.output_len if asking.ignore_eos else None,
        )
        for row, request in enumerate(planned)
    ]


def _warm_up(server: Server, workload: Workload, prompts: Prompts, asking: Asking, count: int) -> list[Asked]:
    """Send requests of the same lengths with other prompts, all at once."""
    if not count:
        return []
    other = replace(
        workload,
        num_requests=count,
        seed=workload.seed + _OTHER_SEED,
        arrival="all",
        request_rate=None,
        burstiness=None,
    )
    return _asked(server, other.requests(prompts.vocab_size, prompts.limits), prompts, asking)


def _record(outcome: Outcome, answer: Answer, planned: PlannedRequest, begin: float) -> RequestRecord:
    return RequestRecord(
        arrival_s=planned.arrival_s,
        sent_s=outcome.sent_s - begin,
        token_times_s=[time - begin for time in answer.chunk_times_s],
        prompt_len=answer.prompt_len,
        priority=planned.priority,
        queue_s=None,
        num_cached_tokens=answer.num_cached_tokens,
        num_preemptions=None,
        num_tokens=answer.num_tokens,
    )


def _figures(
    records: Sequence[RequestRecord], stream: bool, objectives: Mapping[str, float], price_per_hour: float | None
) -> dict[str, Any]:
    """Figures of the requests that succeeded, from the first sending to the last token."""
    seconds = max(record.token_times_s[-1] for record in records) - min(record.sent_s for record in records)
    figures = serving_figures(records, seconds)
    if stream:
        chunks = sum(len(record.token_times_s) for record in records)
        figures["output_tokens_per_chunk"] = figures["output_tokens"] / chunks
    else:
        figures = {name: value for name, value in figures.items() if name not in _OF_TOKENS}
    figures |= goodput_figures(records, seconds, objectives)
    return figures | cost_figures(figures, price_per_hour)


def _errors(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """The kinds of failures, the most frequent first, each with the message of its first request."""
    failures = [outcome.result for outcome in outcomes if isinstance(outcome.result, Failure)]
    examples = {failure.kind: failure.message for failure in reversed(failures)}
    counts = Counter(failure.kind for failure in failures)
    return [{"kind": kind, "count": count, "example": examples[kind]} for kind, count in counts.most_common()]
