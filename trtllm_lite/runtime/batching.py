"""In-flight batching over one executor: every step is any mix of prefill chunks and decode tokens.

The interface is that of a loop which runs on its own: requests are enqueued, responses awaited, requests cancelled.
Here the caller's thread runs one step per ``await_responses``. Nothing in this module knows text or tokenizers.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.errors import LimitError
from trtllm_lite.runtime.request import FinishReason, Request, Response

if TYPE_CHECKING:
    from trtllm_lite.runtime.session import Session

Sampler = Callable[..., NDArray[np.int32]]


@dataclass
class _Sequence:
    """A request that holds cache blocks. ``num_cached`` of its tokens are in the cache."""

    request_id: int
    request: Request
    block_table: NDArray[np.int32]
    num_cached: int = 0
    num_generated: int = 0
    last_token: int = 0
    context_logits: list[NDArray[np.float32]] = field(default_factory=list)

    @property
    def decoding(self) -> bool:
        return self.num_generated > 0

    def next_tokens(self, budget: int) -> NDArray[np.int32]:
        """At most ``budget`` tokens that follow the cached ones."""
        if self.decoding:
            return np.array([self.last_token], np.int32)
        return self.request.prompt_ids[self.num_cached : self.num_cached + budget]

    def samples_after(self, num_tokens: int) -> bool:
        """Whether a step over ``num_tokens`` more tokens ends with a token to sample."""
        return self.num_cached + num_tokens >= len(self.request.prompt_ids)


@dataclass(frozen=True)
class _Chunk:
    """Part of a step: ``tokens`` of one sequence and the rows of the step's logits that belong to it."""

    sequence: _Sequence
    tokens: NDArray[np.int32]
    first_logit: int
    num_logits: int


class BatchLoop:
    """Runs requests over the executor and KV cache of a :class:`Session`, first come, first served.

    A request is admitted when the cache can hold all of it, so a running one never lacks blocks. Use it as a context
    manager: leaving it returns every block, whatever happened.
    """

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._waiting: deque[tuple[int, Request]] = deque()
        self._running: dict[int, _Sequence] = {}

    def __enter__(self) -> "BatchLoop":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @property
    def idle(self) -> bool:
        """Whether no request waits or runs."""
        return not self._waiting and not self._running

    def enqueue_request(self, request: Request) -> int:
        """Queue a request (already checked against the limits); returns its id, unique within the session."""
        request_id = self._session.next_request_id()
        self._waiting.append((request_id, request))
        return request_id

    def cancel_request(self, request_id: int) -> None:
        """End a request now and return its blocks; a request that has ended already is left alone."""
        with self._session.lock:
            self._release(request_id)
        self._waiting = deque(entry for entry in self._waiting if entry[0] != request_id)

    def close(self) -> None:
        """Cancel everything."""
        self._waiting.clear()
        with self._session.lock:
            for request_id in list(self._running):
                self._release(request_id)

    def await_responses(self) -> list[Response]:
        """Run one step; returns the tokens it generated (none while every chunk ends inside a prompt).

        Raises LimitError if no request can start because other loops over this session hold the cache.
        """
        with self._session.lock:
            self._admit()
            chunks = self._schedule()
            if not chunks:
                return []
            logits = self._session.executor.step(**_pack(chunks))
            responses = self._respond(chunks, logits)
            for response in responses:
                if response.finish_reason is not None:
                    self._release(response.request_id)
        return responses

    def _admit(self) -> None:
        session = self._session
        while self._waiting and len(self._running) < session.limits.max_batch_size:
            request_id, request = self._waiting[0]
            needed = session.limits.blocks_for(request.max_tokens)
            if needed > session.blocks.num_free:
                break
            session.blocks.reserve(request_id, request.max_tokens)
            self._waiting.popleft()
            table = np.array(session.blocks.block_table(request_id), np.int32)
            self._running[request_id] = _Sequence(request_id, request, table)
        if self._waiting and not self._running:
            raise LimitError(
                f"the next request needs {needed} KV cache blocks, and {session.blocks.num_free} are free: other "
                "generate calls on this runner hold the rest; finish or close them first, or raise "
                "max_tokens_in_paged_kv_cache"
            )

    def _release(self, request_id: int) -> None:
        if self._running.pop(request_id, None) is not None:
            self._session.blocks.release(request_id)

    def _schedule(self) -> list[_Chunk]:
        """Decodes first, so that prefill never delays them; then prompts in order of arrival, split to what is left."""
        budget = self._session.limits.max_num_tokens
        chunks: list[_Chunk] = []
        num_logits = 0
        for sequence in sorted(self._running.values(), key=lambda sequence: not sequence.decoding):
            if budget == 0:
                break
            tokens = sequence.next_tokens(budget)
            wants_context = sequence.request.context_logits and not sequence.decoding
            rows = len(tokens) if wants_context else int(sequence.samples_after(len(tokens)))
            chunks.append(_Chunk(sequence, tokens, num_logits, rows))
            num_logits += rows
            budget -= len(tokens)
        return chunks

    def _respond(self, chunks: list[_Chunk], logits: NDArray[np.float32]) -> list[Response]:
        sampled = [chunk for chunk in chunks if chunk.sequence.samples_after(len(chunk.tokens))]
        for chunk in chunks:
            sequence = chunk.sequence
            if sequence.request.context_logits and not sequence.decoding:
                sequence.context_logits.append(logits[chunk.first_logit : chunk.first_logit + chunk.num_logits])
            sequence.num_cached += len(chunk.tokens)
        if not sampled:
            return []
        rows = [chunk.first_logit + chunk.num_logits - 1 for chunk in sampled]
        last_logits = logits if len(rows) == len(logits) else logits[rows]
        tokens = self._session.sample(**_sampling_arrays(sampled, last_logits))
        return [
            _advance(chunk.sequence, int(token), row)
            for chunk, token, row in zip(sampled, tokens, last_logits, strict=True)
        ]


def _pack(chunks: list[_Chunk]) -> dict[str, NDArray[np.int32]]:
    """The arguments of ``Executor.step``, packed without padding (but for the ends of short block tables)."""
    tables = np.zeros((len(chunks), max(len(chunk.sequence.block_table) for chunk in chunks)), np.int32)
    logits_indices: list[int] = []
    end = 0
    for table, chunk in zip(tables, chunks, strict=True):
        table[: len(chunk.sequence.block_table)] = chunk.sequence.block_table
        end += len(chunk.tokens)
        logits_indices.extend(range(end - chunk.num_logits, end))
    return {
        "token_ids": np.concatenate([chunk.tokens for chunk in chunks]),
        "seq_lens": np.array([len(chunk.tokens) for chunk in chunks], np.int32),
        "past_lens": np.array([chunk.sequence.num_cached for chunk in chunks], np.int32),
        "block_tables": tables,
        "logits_indices": np.array(logits_indices, np.int32),
    }


def _sampling_arrays(chunks: list[_Chunk], logits: NDArray[np.float32]) -> dict[str, Any]:
    """The arguments of ``sample``, one row for each chunk; the offset is the index of the token within its output."""
    samplings = [chunk.sequence.request.sampling for chunk in chunks]
    return {
        "logits": logits,
        "temperature": np.array([sampling.temperature for sampling in samplings], np.float32),
        "top_k": np.array([sampling.top_k for sampling in samplings], np.int32),
        "top_p": np.array([sampling.top_p for sampling in samplings], np.float32),
        "min_p": np.array([sampling.min_p for sampling in samplings], np.float32),
        "seeds": np.array([sampling.seed for sampling in samplings], np.uint64),
        "offsets": np.array([chunk.sequence.num_generated for chunk in chunks], np.uint64),
    }


def _advance(sequence: _Sequence, token: int, logits: NDArray[np.float32]) -> Response:
    """Record a sampled token and say what became of the request."""
    request = sequence.request
    sequence.last_token = token
    sequence.num_generated += 1
    finish_reason = None
    if token in request.end_ids:
        finish_reason = FinishReason.END_ID
    elif sequence.num_generated == request.max_new_tokens:
        finish_reason = FinishReason.LENGTH
    first = sequence.num_generated == 1
    return Response(
        request_id=sequence.request_id,
        token_id=token,
        finish_reason=finish_reason,
        context_logits=np.concatenate(sequence.context_logits) if first and request.context_logits else None,
        generation_logits=logits.copy() if request.generation_logits else None,
    )
