"""Defines SequenceCounts: sums over the sequences of a model that have ended."""

import threading
from collections import Counter
from typing import Any

from trtllm_lite.runtime.session.request import FinishReason, Request
from trtllm_lite.runtime.session.stats import TOKEN_GAP_BOUNDS, phases_of
from trtllm_lite.serve.metrics.histogram import (
    FIRST_TOKEN_BOUNDS,
    LATENCY_BOUNDS,
    N_BOUNDS,
    Histogram,
    count_bounds,
)


class SequenceCounts:
    """Counts ended sequences, each once. Any thread may add, and read inside ``with``."""

    def __init__(self, max_seq_len: int) -> None:
        self._lock = threading.Lock()
        lengths = count_bounds(max_seq_len)
        self.reasons: Counter[FinishReason | None] = Counter()
        """Numbers of sequences by finish reason, None for errors."""
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.prompt_tokens = Histogram(lengths)
        self.computed_tokens = Histogram(lengths)
        self.generation_tokens = Histogram(lengths)
        self.n = Histogram(N_BOUNDS)
        self.max_tokens = Histogram(lengths)
        self.first_token = Histogram(FIRST_TOKEN_BOUNDS)
        self.per_token = Histogram(TOKEN_GAP_BOUNDS)
        self.total = Histogram(LATENCY_BOUNDS)
        self.queue = Histogram(LATENCY_BOUNDS)
        self.inference = Histogram(LATENCY_BOUNDS)
        self.prefill = Histogram(LATENCY_BOUNDS)
        self.decode = Histogram(LATENCY_BOUNDS)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def add(self, request: Request, reason: FinishReason | None, timings: Any) -> None:
        """Count a sequence (see ``Request.on_end``)."""
        with self._lock:
            self.reasons[reason] += 1
            self.prompt_tokens.observe(len(request.prompt_ids))
            self.generation_tokens.observe(timings.num_generated_tokens)
            if request.params.max_tokens is not None:
                self.max_tokens.observe(request.params.max_tokens)
            if request.sequence_index == 0:
                self.n.observe(request.params.n)
            if timings.num_generated_tokens > 0:
                self._add_times(timings)

    def _add_times(self, timings: Any) -> None:
        self.num_prompt_tokens += timings.num_prompt_tokens
        self.num_cached_tokens += timings.num_cached_tokens
        self.computed_tokens.observe(timings.num_prompt_tokens - timings.num_cached_tokens)
        phases = phases_of(timings)
        if timings.num_generated_tokens > 1:
            self.per_token.observe(timings.seconds_per_token)
        self.first_token.observe(timings.first_token_seconds)
        self.total.observe(timings.total_seconds)
        self.queue.observe(timings.queue_seconds)
        self.prefill.observe(phases.prefill)
        self.decode.observe(phases.decode)
        self.inference.observe(sum(phases))
