"""Defines ServedEncoder: the engine of an encoder in the server; its steps combine texts of several requests."""

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.serve.metrics.encoder_metrics import add_encoder
from trtllm_lite.serve.metrics.families import Families
from trtllm_lite.serve.served_engine import ServedEngine

TokenIds = NDArray[np.int32]
Row = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class _Waiting:
    """A text, and the future of its embedding."""

    text: TokenIds
    row: "asyncio.Future[Row]"


@dataclass(order=True)
class _Turn:
    """The time of a request's next turn, and its waiting texts."""

    start: float
    """The virtual time of the turn, in tokens served to a request that has always waited."""
    number: int
    """The number of the request, in order of arrival."""
    texts: deque[_Waiting] = field(compare=False)


@dataclass(eq=False)
class ServedEncoder(ServedEngine):
    """The engine of an encoder that embeds texts of HTTP requests.

    Requests take turns of one text each, in the order of the tokens that they have been served (weighted fair queueing:
    Demers, Keshav and Shenker, 1989). On a CPU a step takes about ``CPU_STEP_SECONDS``, or longer if one text does.
    """

    num_texts: int = 0
    """The numbers of embedded texts, of their tokens, and of steps."""
    num_tokens: int = 0
    num_steps: int = 0
    _turns: list[_Turn] = field(default_factory=list)
    """A heap of turns."""
    _now: float = 0.0
    """The virtual time at which a new request begins: tokens so far, each divided by the number of waiting requests."""
    _arrivals: Iterator[int] = field(default_factory=itertools.count)
    _num_running: int = 0
    _steps: "asyncio.Task[None] | None" = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.embedder = self.llm.embedder

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
        return {
            "num_requests_running": self._num_running,
            "num_requests_waiting": sum(len(turn.texts) for turn in self._turns),
            "num_active_sequences": self.num_active,
            "capacity": self.capacity,
            "kv_cache_usage": 0.0,
            "num_generated_tokens": 0,
        }

    def add_metrics(self, families: Families) -> None:
        add_encoder(families, self)

    async def embed(self, texts: Sequence[TokenIds]) -> list[Row]:
        """The embeddings of checked texts; they are not computed if this coroutine is cancelled.

        Raises EngineError or DeviceError if a step fails.
        """
        waiting = [_Waiting(text, self.loop.create_future()) for text in texts]
        rows = asyncio.gather(*(one.row for one in waiting))

        def interrupt(error: Exception) -> None:
            for one in waiting:
                if not one.row.done():
                    one.row.set_exception(error)

        self.waiting.add(interrupt)
        heapq.heappush(self._turns, _Turn(self._now, next(self._arrivals), deque(waiting)))
        if self._steps is None:
            self._steps = self.loop.create_task(self._run_steps())
        try:
            return await rows
        finally:
            self.waiting.discard(interrupt)

    async def _run_steps(self) -> None:
        """Run steps until no text waits."""
        while batch := self._next_batch():
            await self._step(batch)
        self._steps = None

    def _next_batch(self) -> list[_Waiting]:
        """The texts of the first turns that fit into a step, without texts that nobody waits for any more."""
        batch: list[_Waiting] = []
        num_tokens = 0
        while self._turns:
            turn = self._turns[0]
            while turn.texts and turn.texts[0].row.done():
                turn.texts.popleft()
            if not turn.texts:
                heapq.heappop(self._turns)
                continue
            length = len(turn.texts[0].text)
            if batch and not self.embedder.fit_step(len(batch) + 1, num_tokens + length):
                break
            batch.append(turn.texts.popleft())
            num_tokens += length
            self._now += length / len(self._turns)
            heapq.heapreplace(self._turns, _Turn(turn.start + length, turn.number, turn.texts))
        return batch

    async def _step(self, batch: list[_Waiting]) -> None:
        texts = [one.text for one in batch]
        self._num_running = len(batch)
        try:
            rows = await asyncio.to_thread(self.embedder.step, texts)
        except Exception as error:  # noqa: BLE001 - each request reports the error
            for one in batch:
                if not one.row.done():
                    one.row.set_exception(error)
        else:
            for one, row in zip(batch, rows, strict=True):
                if not one.row.done():
                    one.row.set_result(row)
            self.num_texts += len(texts)
            self.num_tokens += sum(map(len, texts))
            self.num_steps += 1
        finally:
            self._num_running = 0

    def _seconds_in_queue(self) -> float:
        return 1.0
