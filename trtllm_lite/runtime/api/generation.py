"""Generation: one prompt on its way to one or several continuations, and the RequestOutput it gives."""

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.errors import ArgumentError, TrtllmLiteError
from trtllm_lite.runtime.api.outputs import Output, outputs_of, steps, steps_async
from trtllm_lite.runtime.session.request import FinishReason, Request
from trtllm_lite.runtime.session.request_handle import RequestHandle
from trtllm_lite.runtime.session.session import Session

_REASONS = {
    FinishReason.END_ID: "stop",
    FinishReason.STOP_WORDS: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CANCELLED: "cancelled",
    FinishReason.TIMEOUT: "timeout",
}


@dataclass(frozen=True)
class Logprob:
    """Natural logarithm of a token's probability, and its rank (1: the likeliest)."""

    logprob: float
    rank: int


@dataclass(frozen=True)
class CompletionOutput:
    """One continuation.

    ``token_ids`` hold all that was generated, ``text`` ends before what stopped it (see SamplingParams). ``text_diff``
    and ``token_ids_diff`` are what is new since the output before. ``logprobs`` has for each token {token id: Logprob}
    of itself and the likeliest, ``cumulative_logprob`` is the sum of the former; both are None unless asked for.
    ``score`` is what a beam search ranked it by.
    ``finish_reason`` is None while it runs, then "stop", "length", "cancelled", "timeout" or "error"; ``stop_reason``
    is the stop string or the token (sequence) that stopped it, None for the model's end token.
    ``generation_logits`` is float32[generated, vocab] if asked for.
    """

    index: int
    text: str
    token_ids: list[int]
    text_diff: str
    token_ids_diff: list[int]
    cumulative_logprob: float | None
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: str | None
    stop_reason: str | int | tuple[int, ...] | None
    generation_logits: NDArray[np.float32] | None
    score: float | None


@dataclass(frozen=True)
class RequestOutput:
    """What a prompt has given so far; ``finished`` says whether that is all.

    ``prompt`` is the text, if it came as text. ``prompt_logprobs`` has an entry for each token of the prompt, None for
    the first; ``context_logits`` is float32[prompt_len, vocab]; both are None unless asked for. ``metrics``
    (``_core.RequestTimings``: queue_seconds, first_token_seconds, seconds_per_token, num_cached_tokens, ...) has the
    times of the first continuation once it has ended. ``num_truncated_tokens`` were dropped from the prompt's start.
    ``error`` is what ended it, if something went wrong.
    """

    request_id: int
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    context_logits: NDArray[np.float32] | None
    metrics: Any
    num_truncated_tokens: int
    error: TrtllmLiteError | None


class Generation:
    """A prompt being continued: what ``LLM.generate_async`` returns.

    ``result()`` waits for the end, and so does ``await``. Iterate, with ``for`` or ``async for``, for a
    :class:`RequestOutput` after every step if it is ``streaming``, else for the last one. Cancelling a coroutine that
    awaits it cancels it, and so does dropping it.
    """

    def __init__(
        self, session: Session, request: Request, *, prompt: str | None, num_truncated_tokens: int, streaming: bool
    ) -> None:
        params = request.params
        self._chooses = params.num_sequences > params.n and not params.use_beam_search
        if self._chooses and streaming:
            raise ArgumentError("best_of chooses when all have ended: leave streaming out, or best_of")
        if self._chooses and params.logprobs is None:
            request = replace(request, params=replace(params, logprobs=0))  # what the best ones are chosen by
        self.params = params
        self.prompt = prompt
        self.streaming = streaming
        self._num_truncated_tokens = num_truncated_tokens
        self._handles: list[RequestHandle] = session.submit_all(request.sequences())

    @property
    def request_id(self) -> int:
        """Unique in its LLM."""
        return self._handles[0].request_id

    @property
    def finished(self) -> bool:
        """Whether nothing follows."""
        return all(handle.ended for handle in self._handles)

    def cancel(self) -> None:
        """End it within a step; its outputs keep what they have. Fine in every state."""
        for handle in self._handles:
            handle.cancel()

    abort = cancel

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end, whatever it is; False if ``timeout`` seconds have passed before."""
        return self._handles[0].notifier.wait_until(lambda: self.finished, timeout)

    def result(self, timeout: float | None = None) -> RequestOutput:
        """Wait for the end.

        Raises TimeoutError after ``timeout`` seconds (generation goes on), EngineError if something went wrong.
        """
        if not self.wait(timeout):
            raise TimeoutError(f"request {self.request_id} has not ended after {timeout} s")
        output = self.outcome()
        if output.error is not None:
            raise output.error
        return output

    def outcome(self) -> RequestOutput:
        """What there is now, an error included."""
        outputs = self._outputs()
        for output in outputs:
            output.take_all()
        return self._snapshot(outputs)

    def __await__(self) -> Generator[Any, None, RequestOutput]:
        return self._wait().__await__()

    async def _wait(self) -> RequestOutput:
        try:
            await self._handles[0].notifier.until(lambda: self.finished)
        except asyncio.CancelledError:
            self.cancel()
            raise
        return self.result()

    def __iter__(self) -> Iterator[RequestOutput]:
        if not self.streaming:
            yield self.result()
            return
        outputs = self._outputs()
        for _ in steps(outputs):
            yield self._snapshot(outputs)

    async def __aiter__(self) -> AsyncIterator[RequestOutput]:
        if not self.streaming:
            yield await self
            return
        outputs = self._outputs()
        try:
            async for _ in steps_async(outputs):
                yield self._snapshot(outputs)
        except asyncio.CancelledError:
            self.cancel()
            raise

    def _outputs(self) -> list[Output]:
        return [output for handle in self._handles for output in outputs_of(handle)]

    def _snapshot(self, outputs: Sequence[Output]) -> RequestOutput:
        first = outputs[0].handle
        error = next((output.handle.error for output in outputs if output.handle.error is not None), None)
        finished = all(output.finish_reason is not None or output.handle.error is not None for output in outputs)
        completions = [_completion(index, output, self.params.logprobs) for index, output in enumerate(outputs)]
        if self._chooses:
            completions.sort(key=lambda completion: -(completion.cumulative_logprob or 0.0))
            completions = [replace(entry, index=index) for index, entry in enumerate(completions[: self.params.n])]
        prompt_ids = first.request.prompt_ids.tolist()
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=prompt_ids,
            outputs=completions,
            finished=finished,
            prompt_logprobs=_prompt_logprobs(first, prompt_ids),
            context_logits=first.context_logits,
            metrics=first.timings,
            num_truncated_tokens=self._num_truncated_tokens,
            error=error,
        )


def _completion(index: int, output: Output, num_logprobs: int | None) -> CompletionOutput:
    reason = "error" if output.handle.error is not None else None
    if output.finish_reason is not None:
        reason = _REASONS[output.finish_reason]
    token_ids, logprobs = list(output.token_ids), output.logprobs
    return CompletionOutput(
        index=index,
        text=output.text,
        token_ids=token_ids,
        text_diff=output.new_text,
        token_ids_diff=token_ids[len(token_ids) - output.num_new_tokens :],
        cumulative_logprob=sum(row.logprob for row in logprobs) if logprobs else None,
        logprobs=None if num_logprobs is None else list(map(_logprobs, token_ids, logprobs)),
        finish_reason=reason,
        stop_reason=output.handle.stop_reason(token_ids[-1] if token_ids else None) if reason == "stop" else None,
        generation_logits=np.stack(output.generation_logits) if output.generation_logits else None,
        score=output.score,
    )


def _logprobs(token: int, row: Any) -> dict[int, Logprob]:
    """The chosen token first, then the likeliest; ``row`` is a ``_core.sampling.RowLogprobs``."""
    top = {other: Logprob(logprob, rank) for rank, (other, logprob) in enumerate(row.top, 1)}
    return {token: Logprob(row.logprob, row.rank)} | {other: entry for other, entry in top.items() if other != token}


def _prompt_logprobs(handle: RequestHandle, prompt_ids: list[int]) -> list[dict[int, Logprob] | None] | None:
    if handle.request.params.prompt_logprobs is None:
        return None
    return [None, *map(_logprobs, prompt_ids[1:], handle.prompt_logprobs)]
