"""Computes the figures of a report from the records of its requests."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from trtllm_lite.errors import ArgumentError, shown

PERCENTILES = (50, 90, 95, 99)
# The objectives have the names and the unit (milliseconds) of `vllm bench serve --goodput`.
OBJECTIVES = ("ttft", "tpot", "e2el")

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class RequestRecord:
    """The record of one request; times are in seconds from the start of the run.

    ``arrival_s``: when it was due; ``sent_s``: when it was submitted, later if the concurrency cap delayed it;
    ``token_times_s``: when each of its tokens arrived, at least one; or the arrivals of chunks, with ``num_tokens``
    tokens in all. Latencies count from ``sent_s``. ``queue_s``: from submission to the first step that it was part of.
    ``first_step_s``: from submission to the end of the step that gave the first token, which the client may see later.
    Fields that a client of a server cannot know are None.
    """

    arrival_s: float
    sent_s: float
    token_times_s: Sequence[float]
    prompt_len: int
    priority: int = 0
    queue_s: float | None = 0.0
    num_cached_tokens: int | None = 0
    num_preemptions: int | None = 0
    num_tokens: int | None = None
    first_step_s: float | None = None

    @property
    def output_len(self) -> int:
        """The number of generated tokens."""
        return len(self.token_times_s) if self.num_tokens is None else self.num_tokens

    @property
    def time_to_first_token_s(self) -> float:
        """Seconds from submission to the first token."""
        return self.token_times_s[0] - self.sent_s

    @property
    def end_to_end_latency_s(self) -> float:
        """Seconds from submission to the last token."""
        return self.token_times_s[-1] - self.sent_s

    @property
    def time_per_output_token_s(self) -> float | None:
        """Mean seconds per token after the first; None for an output of one token, or one chunk."""
        if len(self.token_times_s) == 1 or self.output_len == 1:
            return None
        return (self.token_times_s[-1] - self.token_times_s[0]) / (self.output_len - 1)

    @property
    def inter_token_latencies_s(self) -> list[float]:
        """Seconds between consecutive tokens, or chunks."""
        return [later - sooner for sooner, later in itertools.pairwise(self.token_times_s)]


def summary(values: Sequence[float]) -> dict[str, float]:
    """Mean and percentiles, interpolated linearly between the nearest two values; empty for no values."""
    if not values:
        return {}
    percentiles = np.percentile(values, PERCENTILES)
    return {
        "mean": float(np.mean(values)),
        **{f"p{rank}": float(value) for rank, value in zip(PERCENTILES, percentiles, strict=True)},
    }


def serving_figures(records: Sequence[RequestRecord], seconds: float) -> dict[str, Any]:
    """Figures of a run of ``seconds``; latencies as :func:`summary`, rates per second.

    Figures of fields that are None in some requests are left out.
    """
    output_tokens = sum(record.output_len for record in records)
    prompt_tokens = sum(record.prompt_len for record in records)
    per_token = [record.time_per_output_token_s for record in records]
    return {
        "seconds": seconds,
        "requests_per_s": len(records) / seconds,
        "output_tokens_per_s": output_tokens / seconds,
        "total_tokens_per_s": (output_tokens + prompt_tokens) / seconds,
        **_latencies(records),
        "time_per_output_token_s": summary([value for value in per_token if value is not None]),
        "inter_token_latency_s": summary([gap for record in records for gap in record.inter_token_latencies_s]),
        "held_back_s": summary([record.sent_s - record.arrival_s for record in records]),
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        **_counted(records, prompt_tokens),
    }


def priority_figures(records: Sequence[RequestRecord]) -> dict[str, dict[str, Any]]:
    """Latencies of the requests of each priority, the highest first; empty if all requests have the same priority."""
    priorities = sorted({record.priority for record in records}, reverse=True)
    if len(priorities) == 1:
        return {}
    return {str(priority): _latencies([r for r in records if r.priority == priority]) for priority in priorities}


def _latencies(records: Sequence[RequestRecord]) -> dict[str, Any]:
    latencies = {
        "time_to_first_token_s": summary([record.time_to_first_token_s for record in records]),
        "end_to_end_latency_s": summary([record.end_to_end_latency_s for record in records]),
    }
    queued = _known([record.queue_s for record in records])
    return latencies if queued is None else {**latencies, "queue_s": summary(queued)}


def _counted(records: Sequence[RequestRecord], prompt_tokens: int) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    cached = _known([record.num_cached_tokens for record in records])
    if cached is not None:
        figures["cached_prompt_share"] = sum(cached) / prompt_tokens
    preemptions = _known([record.num_preemptions for record in records])
    if preemptions is not None:
        figures["preemptions"] = sum(preemptions)
    return figures


def _known(values: Sequence[Number | None]) -> list[Number] | None:
    """All of ``values``, or None if one of them is None."""
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else None


def parse_objectives(texts: Sequence[str]) -> dict[str, float]:
    """Service level objectives in seconds by name, from ``name:milliseconds`` texts.

    Raises ArgumentError for another form, an unknown name, or a name given twice.
    """
    objectives: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition(":")
        try:
            limit = float(value)
        except ValueError:
            limit = 0.0
        if name not in OBJECTIVES or name in objectives or not 0 < limit < float("inf"):
            raise ArgumentError(
                f"goodput is {shown(text)}: expected NAME:MILLISECONDS, each name once, with NAME one of "
                f"{', '.join(OBJECTIVES)}"
            )
        objectives[name] = limit / 1e3
    return objectives


def goodput_figures(
    records: Sequence[RequestRecord], seconds: float, objectives: Mapping[str, float]
) -> dict[str, float]:
    """The share and rate of requests that met every objective; empty without objectives.

    An output of one token has no time per token, and so meets the objective ``tpot``.
    """
    if not objectives:
        return {}
    good = sum(_meets(record, objectives) for record in records)
    return {"goodput_share": good / len(records), "goodput_requests_per_s": good / seconds}


def _meets(record: RequestRecord, objectives: Mapping[str, float]) -> bool:
    reached = {
        "ttft": record.time_to_first_token_s,
        "tpot": record.time_per_output_token_s or 0.0,
        "e2el": record.end_to_end_latency_s,
    }
    return all(reached[name] <= limit for name, limit in objectives.items())


def cost_figures(figures: Mapping[str, Any], price_per_hour: float | None) -> dict[str, float]:
    """The price of a million tokens, in the currency of ``price_per_hour``, at the throughput of ``figures``."""
    if price_per_hour is None:
        return {}
    return {
        f"cost_per_million_{kind}_tokens": price_per_hour / 3600 / figures[f"{kind}_tokens_per_s"] * 1e6
        for kind in ("output", "total")
    }
