"""Defines the counts and times of a session."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from trtllm_lite.common.units import counted
from trtllm_lite.errors import shown
from trtllm_lite.pages import fact_table

# fmt: off
TOKEN_GAP_BOUNDS = (
    0.001, 0.0015, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075,
    0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)
# fmt: on
"""Upper bounds, in seconds, of the buckets of the histogram of gaps between tokens."""
_RECENT = 100
_ROW = 6  # a row: requests; seconds in the queue, to the first token, to the end, of decoding; tokens decoded


@dataclass(frozen=True)
class Latencies:
    """Means over ``num_requests`` requests that generated something, in seconds; 0 if there were none.

    ``queue_seconds`` is from submission to admission, ``first_token_seconds`` from submission to the first token,
    ``total_seconds`` from submission to the end, ``seconds_per_token`` a mean over all tokens but each request's first.
    """

    num_requests: int
    queue_seconds: float
    first_token_seconds: float
    total_seconds: float
    seconds_per_token: float


@dataclass(frozen=True)
class Speculation:
    """Draft tokens of ``num_drafts`` drafts: how many were proposed and how many accepted, by position in the draft."""

    num_drafts: int
    num_drafted: tuple[int, ...]
    num_accepted: tuple[int, ...]

    @property
    def acceptance(self) -> tuple[float, ...]:
        """The share of draft tokens that were accepted, by position; 0 for positions without any."""
        pairs = zip(self.num_accepted, self.num_drafted, strict=True)
        return tuple(accepted / max(drafted, 1) for accepted, drafted in pairs)

    @property
    def tokens_per_step(self) -> float:
        """Mean number of tokens that a step with draft tokens produced; 0 if there was none."""
        return (sum(self.num_accepted) + self.num_drafts) / self.num_drafts if self.num_drafts else 0.0

    def since(self, before: "Speculation") -> "Speculation":
        """The counts made after ``before``."""
        drafted = zip(self.num_drafted, before.num_drafted, strict=True)
        accepted = zip(self.num_accepted, before.num_accepted, strict=True)
        return Speculation(
            self.num_drafts - before.num_drafts,
            tuple(now - then for now, then in drafted),
            tuple(now - then for now, then in accepted),
        )


@dataclass(frozen=True)
class Stats:
    """Counts since the engine was opened; numbers with running, waiting, used or free in their names are current.

    ``prefix_hit_rate`` is the share of looked-up prompt tokens (``lookup_tokens``) that the KV cache held
    (``hit_tokens``). ``reached_tokens`` has for each of the manifest's cache groups the looked-up tokens that it would
    have saved by itself; a request is saved what all groups have. ``host_tokens`` are those of ``hit_tokens`` for
    which a group's content came back from host memory. A preempted request is computed again
    (``num_recomputed_tokens`` in all) or was swapped to host memory. ``num_steps`` steps took ``step_seconds``, in
    ``host_seconds`` of which the host did not wait for the
    device. ``decode_host_times`` is a histogram of decode-only steps by the host's seconds per step, with a resolution
    of 3%. ``num_late_rows``: how often a request was left out of a step because its grammar's mask was not ready.
    ``loaded_loras`` are the names of the adapters in memory, the least recently used first.
    """

    num_running: int
    num_waiting: int
    num_blocks: int
    num_used_blocks: int
    num_free_host_blocks: int
    lookup_tokens: int
    hit_tokens: int
    prefix_hit_rate: float
    num_recompute_preemptions: int
    num_swap_preemptions: int
    num_recomputed_tokens: int
    num_steps: int
    num_failed_steps: int
    num_scheduled_tokens: int
    num_late_rows: int
    num_generated_tokens: int
    step_seconds: float
    host_seconds: float
    decode_host_times: dict[float, int]
    speculation: Speculation
    latencies: Latencies
    recent_latencies: Latencies
    loaded_loras: tuple[str, ...] = ()
    reached_tokens: tuple[int, ...] = ()
    host_tokens: tuple[int, ...] = ()

    def __repr__(self) -> str:
        """The figures that people look for; ``dataclasses.asdict`` has everything."""
        return f"<Stats: {', '.join(f'{name} {text}' for name, text in self._told().items())}>"

    def _repr_html_(self) -> str:
        """The figures of ``repr`` as a table, for notebooks."""
        return fact_table("Stats", self._told())

    def _told(self) -> dict[str, str]:
        told = {
            "requests": f"{self.num_running:,} running, {self.num_waiting:,} waiting",
            "KV cache": f"{self.num_used_blocks:,} of {counted(self.num_blocks, 'block')}",
            "prompt tokens found in the cache": f"{self.prefix_hit_rate:.1%}",
            "steps": f"{self.num_steps:,} in {self.step_seconds:.2f} s",
            "generated tokens": f"{self.num_generated_tokens:,}",
        }
        if self.latencies.num_requests:
            told["mean time to first token"] = f"{self.latencies.first_token_seconds * 1e3:.1f} ms"
            told["mean time per token"] = f"{self.latencies.seconds_per_token * 1e3:.2f} ms"
        if self.num_failed_steps:
            told["failed steps"] = f"{self.num_failed_steps:,}"
        if self.speculation.num_drafts:
            told["tokens of a step with draft tokens"] = f"{self.speculation.tokens_per_step:.2f}"
        if self.loaded_loras:
            told["adapters"] = shown(self.loaded_loras)
        return told


class Phases(NamedTuple):
    """Seconds of a request from joining the batch to the first token, and from there to the last."""

    prefill: float
    decode: float


def phases_of(timings: Any) -> Phases:
    """The phases of a request that generated something, from its ``_core.RequestTimings``."""
    return Phases(
        timings.first_token_seconds - timings.queue_seconds,
        timings.seconds_per_token * (timings.num_generated_tokens - 1),
    )


class LatencyLog:
    """Keeps statistics of ended requests. One thread adds requests, other threads read."""

    def __init__(self) -> None:
        self._sums = np.zeros(_ROW)
        self._recent: deque[np.ndarray] = deque(maxlen=_RECENT)

    def add(self, timings: Any) -> None:
        """Count a request by its ``_core.RequestTimings``."""
        if timings.num_generated_tokens == 0:
            return
        means = (timings.queue_seconds, timings.first_token_seconds, timings.total_seconds)
        row = np.array([1, *means, phases_of(timings).decode, timings.num_generated_tokens - 1])
        self._sums = self._sums + row
        self._recent.append(row)

    def overall(self) -> Latencies:
        """Latencies over all requests."""
        return _means(self._sums)

    def recent(self) -> Latencies:
        """Latencies over the last hundred requests."""
        return _means(sum(self._recent, np.zeros(_ROW)))


def make_stats(counts: Mapping[str, Any], latencies: LatencyLog, loaded_loras: tuple[str, ...] = ()) -> Stats:
    """The statistics made from the dictionary that ``_core.EventLoop.stats`` returns."""
    plain = {field.name: counts[field.name] for field in fields(Stats) if field.name in counts}
    return Stats(
        **plain,
        speculation=Speculation(counts["num_drafts"], tuple(counts["num_drafted"]), tuple(counts["num_accepted"])),
        prefix_hit_rate=counts["hit_tokens"] / max(counts["lookup_tokens"], 1),
        latencies=latencies.overall(),
        recent_latencies=latencies.recent(),
        loaded_loras=loaded_loras,
    )


def _means(sums: np.ndarray) -> Latencies:
    count, queue, first, total, decode_seconds, decoded = sums.tolist()
    requests, tokens = max(count, 1), max(decoded, 1)
    return Latencies(int(count), queue / requests, first / requests, total / requests, decode_seconds / tokens)
