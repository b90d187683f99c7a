"""Defines ServedEncoder: the engine of an encoder or a classifier in the server."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.engine.modules import Module
from trtllm_lite.runtime.session.embedding_handle import EmbeddingHandle
from trtllm_lite.runtime.text.tokenizer import Tokenizer
from trtllm_lite.serve.metrics.encoder_metrics import add_encoder
from trtllm_lite.serve.metrics.families import Families
from trtllm_lite.serve.metrics.texts import TextCounts
from trtllm_lite.serve.served_engine import ServedEngine

TokenIds = NDArray[np.int32]
Rows = NDArray[np.float32]


@dataclass(eq=False)
class ServedEncoder(ServedEngine):
    """The engine of an encoder that embeds or classifies texts of HTTP requests."""

    def __post_init__(self) -> None:
        assert self.llm.encoder is not None
        self.embedder = self.llm.encoder
        super().__post_init__()
        self.counts = TextCounts(self.max_input_len)

    def own_tokenizer(self) -> Tokenizer | None:
        return self.embedder.tokenizer

    @property
    def module(self) -> Module:
        return self.embedder.manifest.module

    @property
    def vocab_size(self) -> int:
        return self.embedder.manifest.model.vocab_size

    @property
    def max_model_len(self) -> int:
        return self.max_input_len

    @property
    def max_input_len(self) -> int:
        return self.embedder.limits.max_input_len

    @property
    def max_batch_size(self) -> int:
        return self.embedder.limits.max_batch_size

    @property
    def is_broken(self) -> bool:
        return self.embedder.is_broken

    def load(self) -> dict[str, float]:
        stats = self.embedder.stats()
        return {
            "num_requests_running": stats.num_running,
            "num_requests_waiting": stats.num_waiting,
            "num_active_sequences": self.num_active,
            "capacity": self.capacity,
            "kv_cache_usage": 0.0,
            "num_generated_tokens": 0,
        }

    def add_metrics(self, families: Families) -> None:
        add_encoder(families, self)

    def start(self, texts: Sequence[TokenIds], priority: int, timeout: float | None) -> EmbeddingHandle:
        """Submit the texts of a request, from any thread.

        Raises the errors of ``Embedder.submit``, and ApiError for a priority if the operator does not allow them.
        """
        self.check_priority(priority)
        return self.embedder.submit(texts, priority=priority, timeout=timeout, on_end=self.counts.add)

    async def embedded(self, handle: EmbeddingHandle) -> Rows:
        """The rows of submitted texts, embeddings or scores: float32[texts, size].

        The texts are cancelled if this coroutine is. Raises the errors of ``EmbeddingHandle.result``.
        """
        self.waiting.add(handle.end_with)
        try:
            return await handle.wait()
        finally:
            self.waiting.discard(handle.end_with)
            handle.cancel()

    def _seconds_in_queue(self) -> float:
        """The estimated time until a place in the queue is free, at the rate of the last hundred texts."""
        return self.counts.recent_seconds() * self.settings.max_queue_size / self.max_batch_size
