"""Defines TextCounts: sums over the texts of an encoder that have ended."""

import threading
from collections import Counter, deque

from trtllm_lite.runtime.session.embedding_handle import TextTimings
from trtllm_lite.runtime.session.request import FinishReason
from trtllm_lite.serve.metrics.histogram import LATENCY_BOUNDS, Histogram, count_bounds

_RECENT = 100


class TextCounts:
    """Counts ended texts, each once. Any thread may add, and read inside ``with``."""

    def __init__(self, max_input_len: int) -> None:
        self._lock = threading.Lock()
        self.reasons: Counter[FinishReason | None] = Counter()
        """Numbers of texts by finish reason, None for errors."""
        self.num_prompt_tokens = 0
        """Tokens of embedded texts."""
        self.prompt_tokens = Histogram(count_bounds(max_input_len))
        self.total = Histogram(LATENCY_BOUNDS)
        self.queue = Histogram(LATENCY_BOUNDS)
        self.inference = Histogram(LATENCY_BOUNDS)
        self._recent: deque[float] = deque(maxlen=_RECENT)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def add(self, reason: FinishReason | None, timings: TextTimings) -> None:
        """Count a text (see ``EmbeddingHandle``)."""
        with self._lock:
            self.reasons[reason] += 1
            self.prompt_tokens.observe(timings.num_prompt_tokens)
            if reason is not FinishReason.END_ID:
                return
            self.num_prompt_tokens += timings.num_prompt_tokens
            self.total.observe(timings.total_seconds)
            self.queue.observe(timings.queue_seconds)
            self.inference.observe(timings.total_seconds - timings.queue_seconds)
            self._recent.append(timings.total_seconds)

    def recent_seconds(self) -> float:
        """The mean time of the last hundred texts from their submission to their embedding; 0 if there are none."""
        with self._lock:
            return sum(self._recent) / max(len(self._recent), 1)
