"""Defines Generation: a prompt that is being continued, once or several times."""

import asyncio
import math
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from trtllm_lite.errors import ArgumentError
from trtllm_lite.runtime.api.outputs import Output, outputs_of, steps, steps_async
from trtllm_lite.runtime.api.request_output import (
    CompletionOutput,
    RequestOutput,
    completion_of,
    metrics_of,
    prompt_logprobs_of,
)
from trtllm_lite.runtime.session.notifier import Notifier
from trtllm_lite.runtime.session.request import Request
from trtllm_lite.runtime.session.request_handle import RequestHandle
from trtllm_lite.runtime.session.session import Session


class Generation:
    """A prompt being continued: what ``LLM.generate_async`` returns.

    ``result()`` and ``await`` wait for the end. Iterating, with ``for`` or ``async for``, gives a
    :class:`RequestOutput` after every step if the generation is ``streaming``, else only the last one. The generation
    is cancelled when a coroutine that awaits it is cancelled, or when nothing refers to it any more.
    """

    def __init__(
        self,
        session: Session,
        request: Request,
        *,
        prompt: str | None,
        num_truncated_tokens: int,
        streaming: bool,
        notifier: Notifier | None = None,
    ) -> None:
        params = request.params
        self._chooses = params.num_sequences > params.n and not params.use_beam_search
        if self._chooses and streaming:
            raise ArgumentError("best_of chooses when all texts have ended: leave out either streaming or best_of")
        if self._chooses and params.logprobs is None:
            request = replace(request, params=replace(params, logprobs=0))  # needed to find the best
        self.params = params
        self.prompt = prompt
        self.streaming = streaming
        self._num_truncated_tokens = num_truncated_tokens
        self._handles: list[RequestHandle] = session.submit_all(request.sequences(), notifier)
        self._prompt_ids: list[int] = request.prompt_ids.tolist()  # the prompt after truncation

    @property
    def handles(self) -> Sequence[RequestHandle]:
        """A handle for each sampled sequence, or one handle for a beam search."""
        return self._handles

    @property
    def request_id(self) -> int:
        """A number that is unique among the requests of an LLM."""
        return self._handles[0].request_id

    @property
    def finished(self) -> bool:
        """Whether every continuation has ended."""
        return all(handle.ended for handle in self._handles)

    def cancel(self) -> None:
        """End the generation within a step; the outputs so far are kept. A generation that has ended stays as it is."""
        for handle in self._handles:
            handle.cancel()

    abort = cancel

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the generation has ended, even with an error; return False after ``timeout`` seconds."""
        return self._handles[0].notifier.wait_until(lambda: self.finished, timeout)

    def result(self, timeout: float | None = None) -> RequestOutput:
        """Wait until the generation has ended, and return the whole output.

        Raises TimeoutError after ``timeout`` seconds (generation goes on), EngineError if the request failed.
        """
        if not self.wait(timeout):
            raise TimeoutError(f"request {self.request_id} has not ended after {timeout} s")
        output = self.outcome()
        if output.error is not None:
            raise copy(output.error)
        return output

    def outcome(self) -> RequestOutput:
        """The output so far; an error is stored in it and not raised."""
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
        completions = [completion_of(index, output, self.params.logprobs) for index, output in enumerate(outputs)]
        if self._chooses:
            completions.sort(key=_rank)
            completions = [replace(entry, index=index) for index, entry in enumerate(completions[: self.params.n])]
        return RequestOutput.with_later(
            {"prompt_logprobs": prompt_logprobs_of(first, self._prompt_ids)},
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self._prompt_ids,
            outputs=completions,
            finished=finished,
            context_logits=first.context_logits,
            metrics=metrics_of(first),
            num_truncated_tokens=self._num_truncated_tokens,
            error=error,
        )


def _rank(completion: CompletionOutput) -> float:
    """A sort key: the likeliest continuation first; one without tokens, and so without a probability, last."""
    return math.inf if completion.cumulative_logprob is None else -completion.cumulative_logprob
