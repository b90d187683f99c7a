"""Collects the output of requests so far, step by step."""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.runtime.session.request import FinishReason, Hypothesis, Request, Response
from trtllm_lite.runtime.session.request_handle import RequestHandle


class Output:
    """The responses of one request that were taken so far; for a beam search those of hypothesis ``beam``.

    The token ids hold all that was generated; the text, which is in ``pieces``, ends before an end id or a stop word.
    ``score`` is the score of the hypothesis. Lists only grow, or are replaced as a whole by those of a hypothesis: a
    reference to a list and its length at one time identify the contents at that time.
    """

    def __init__(self, handle: RequestHandle, beam: int = 0) -> None:
        self.handle = handle
        self.score: float | None = None
        self._beam = beam
        self.token_ids: list[int] = []
        self.pieces: list[str] = []
        self.new_text = ""
        self.finish_reason: FinishReason | None = None
        self.logprobs: list[Any] = []
        self.cumulative_logprob: float | None = None
        self.generation_logits: list[NDArray[np.float32]] = []
        self.num_new_tokens = 0
        self._num_taken = 0

    @property
    def request(self) -> Request:
        """The request that this output belongs to."""
        return self.handle.request

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self.pieces)

    @property
    def ready(self) -> bool:
        """Whether :meth:`advance` has something to take, or an error to raise."""
        return self.finish_reason is None and self.handle.has(self._num_taken)

    def skip(self) -> None:
        """Mark that the current step brought nothing new."""
        self.new_text, self.num_new_tokens = "", 0

    def advance(self) -> None:
        """Take the next response, which has to be ready. Raises EngineError if the request failed instead."""
        if self._num_taken == len(self.handle.responses):
            self.handle.result()
        self._take(self.handle.responses[self._num_taken])

    def take_all(self) -> None:
        """Take all responses that are ready, as new ones."""
        for response in self.handle.responses[self._num_taken :]:
            self._take(response)
        self.new_text, self.num_new_tokens = self.text, len(self.token_ids)

    def _take(self, response: Response) -> None:
        self._num_taken += 1
        self.num_new_tokens = 0 if response.token_id is None else 1
        if response.token_id is not None:
            self.token_ids.append(response.token_id)
        if response.logprobs is not None:
            self.logprobs.append(response.logprobs)
            self.cumulative_logprob = (self.cumulative_logprob or 0.0) + response.logprobs.logprob
        if response.generation_logits is not None:
            self.generation_logits.append(response.generation_logits)
        self.finish_reason = response.finish_reason
        self.new_text = response.text
        if response.text:
            self.pieces.append(response.text)
        if self._beam < len(self.handle.hypotheses) and self.finish_reason is not None:
            self._take_hypothesis(self.handle.hypotheses[self._beam])

    def _take_hypothesis(self, found: Hypothesis) -> None:
        self.token_ids, self.pieces = found.token_ids, [found.text]
        self.score, self.finish_reason = found.score, found.finish_reason
        self.cumulative_logprob = _cumulative(found, self.request.params.length_penalty)
        self.new_text, self.num_new_tokens = self.text, len(self.token_ids)


def _cumulative(found: Hypothesis, length_penalty: float) -> float | None:
    """The sum of log probabilities that a score was computed from (see SamplingParams); None if it overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = found.score * np.float64(len(found.token_ids)) ** length_penalty
    return float(total) if np.isfinite(total) else None


def outputs_of(handle: RequestHandle) -> list[Output]:
    """The outputs of a request: one, or the ``n`` best hypotheses of a beam search."""
    params = handle.request.params
    return [Output(handle, beam) for beam in range(params.n if params.use_beam_search else 1)]


def steps(outputs: Sequence[Output]) -> Iterator[None]:
    """Advance outputs whose handles share a notifier; each step takes one response of every output that has one.

    Raises EngineError if a request failed.
    """
    notifier = outputs[0].handle.notifier
    while _unfinished(outputs):
        notifier.wait_until(lambda: any(output.ready for output in outputs))
        _advance(outputs)
        yield


async def steps_async(outputs: Sequence[Output]) -> AsyncIterator[None]:
    """:func:`steps` for coroutines."""
    notifier = outputs[0].handle.notifier
    while _unfinished(outputs):
        await notifier.until(lambda: any(output.ready for output in outputs))
        _advance(outputs)
        yield


def _unfinished(outputs: Sequence[Output]) -> bool:
    return any(output.finish_reason is None for output in outputs)


def _advance(outputs: Sequence[Output]) -> None:
    with outputs[0].handle.notifier:  # the event pump publishes the responses of one step of the engine together
        ready = [output.ready for output in outputs]
    for output, is_ready in zip(outputs, ready, strict=True):
        if is_ready:
            output.advance()
        else:
            output.skip()
