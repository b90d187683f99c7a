"""Defines RequestHandle: a request in the event loop, as its submitter sees it."""

from collections.abc import AsyncIterator, Callable, Iterator
from copy import copy
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.common.printable import printable
from trtllm_lite.errors import EngineError, TrtllmLiteError
from trtllm_lite.runtime.core import core
from trtllm_lite.runtime.session.notifier import Notifier, WakeUps
from trtllm_lite.runtime.session.request import FinishReason, Hypothesis, Request, Response

FINISH_REASONS = {
    "END_ID": FinishReason.END_ID,
    "STOP_SEQUENCE": FinishReason.STOP_WORDS,
    "LENGTH": FinishReason.LENGTH,
    "CANCELLED": FinishReason.CANCELLED,
    "TIMED_OUT": FinishReason.TIMEOUT,
}
"""Maps names of ``_core.FinishReason`` to reasons; ERROR has none."""


class RequestHandle:
    """The result of ``Session.submit``; iterating over it, with ``for`` or ``async for``, gives each :class:`Response`.

    The request is cancelled when nothing refers to its handle any more. Handles that are waited for together share a
    ``notifier``.
    """

    def __init__(
        self,
        request: Request,
        native: Any,
        grammar: Any,
        new_text: Callable[[], Any],
        notifier: Notifier,
        cancel: Callable[[int], object],
        rows: Any = None,
    ) -> None:
        self.request = request
        self.native = native
        """``_core.sampling.SamplingParams`` of the request."""
        self.grammar = grammar
        """``_core.Grammar`` of the request, or None."""
        self.rows = rows
        """``_core.PromptRows`` of the request, or None."""
        self.notifier = notifier
        self.request_id = 0
        self.responses: list[Response] = []
        """The responses so far; the list only grows."""
        self.context_logits: NDArray[np.float32] | None = None
        """float32[prompt_len, vocab], complete when the first response arrives, if the request asked for it."""
        self.prompt_logprobs: list[Any] = []
        """``_core.sampling.RowLogprobs`` of the prompt's tokens from the second on, if the request asked for them."""
        self.timings: Any = None
        """``_core.RequestTimings``, set when the request has ended."""
        self.error: TrtllmLiteError | None = None
        """The error that ended the request, or None."""
        self.hypotheses: list[Hypothesis] = []
        """The hypotheses of a beam search, best first, set when it has ended."""
        self.text = new_text()
        """``_core.TextStream`` of the request, to which the event pump pushes its tokens."""
        self._new_text = new_text
        self._match: str | tuple[int, ...] | None = None
        self._cancel = cancel
        self._unpublished: list[Response] = []
        self._context_logits: list[NDArray[np.float32]] = []
        self._end: Any = None
        self._withdraw: Callable[[RequestHandle], bool] | None = None
        self._tells_end = request.on_end is not None

    @property
    def ended(self) -> bool:
        """Whether the request has ended."""
        return self.timings is not None or self.error is not None

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the sequence ended; None while it runs, or if an error ended it."""
        return self.responses[-1].finish_reason if self.responses else None

    def stop_reason(self, last_token: int | None) -> str | int | tuple[int, ...] | None:
        """The stop word, or token of ``stop_token_ids``, that ended a sequence with ``last_token``."""
        if self._match is not None:
            return self._match
        return last_token if last_token in self.native.stop_token_ids else None

    def cancel(self) -> None:
        """End the request within a step of the event loop, with the reason ``cancelled`` unless it has ended before."""
        if self._withdraw is not None and self._withdraw(self):
            self.end_unstarted("CANCELLED")
        else:
            self._cancel(self.request_id)

    def may_wait(self, withdraw: "Callable[[RequestHandle], bool]") -> None:
        """Note that the request waits outside the event loop; ``withdraw`` takes it back if it still waits."""
        self._withdraw = withdraw

    def end_unstarted(self, reason: str) -> None:
        """End a request that the event loop never saw, with the ``_core.FinishReason`` of that name."""
        native = core()
        end = SimpleNamespace(reason=native.FinishReason[reason], timings=native.RequestTimings())
        self._tell_unstarted(self.end(end))
        with WakeUps() as wake_ups, self.notifier:
            self.publish()
            self.notifier.notify(wake_ups, [self])

    def end_with(self, error: TrtllmLiteError) -> None:
        """End the request with ``error``, and wake all who wait for it."""
        self._tell_unstarted(None)
        with WakeUps() as wake_ups, self.notifier:
            self.fail(error)
            self.notifier.notify(wake_ups, [self])

    def result(self, timeout: float | None = None) -> list[Response]:
        """Wait until the request has ended; returns all responses.

        Raises TimeoutError after ``timeout`` seconds (the request goes on), EngineError if the request failed.
        """
        if not self.notifier.wait_until(lambda: self.ended, timeout):
            raise TimeoutError(f"request {self.request_id} has not ended after {timeout} s")
        if self.error is not None:
            raise copy(self.error)  # a traceback in the kept error would keep the session alive
        return self.responses

    def has(self, position: int) -> bool:
        """Whether response number ``position`` has arrived, or never will."""
        return len(self.responses) > position or self.ended

    def __iter__(self) -> Iterator[Response]:
        position = 0
        while True:
            self.notifier.wait_until(partial(self.has, position))
            if position == len(self.responses):
                self.result()
                return
            yield self.responses[position]
            position += 1

    async def __aiter__(self) -> AsyncIterator[Response]:
        position = 0
        while True:
            await self.notifier.until(partial(self.has, position))
            if position == len(self.responses):
                self.result()
                return
            yield self.responses[position]
            position += 1

    # The event pump calls the following methods: it collects the events of one poll for every request, then publishes
    # them.

    def collect(self, token_ids: list[int], texts: list[str], outputs: Any | None) -> None:
        """Take tokens of this request with their texts, and the ``_core.TokenEvent`` that has their outputs.

        There are fewer texts than tokens if a stop word has ended the text. Tokens after an error are dropped.
        """
        if self.error is not None:
            return
        if outputs is None:
            for token_id, text in zip(token_ids, texts, strict=False):
                self._unpublished.append(Response(token_id, text))
        else:
            self._take_outputs(outputs, token_ids, texts)

    def stop(self) -> None:
        """Note that a stop word has ended the text, and end the request."""
        self._match = self.text.match
        self.cancel()

    def untold(self) -> Request | None:
        """The request, if its ``on_end`` has yet to be called; the first caller has to do so."""
        tells, self._tells_end = self._tells_end, False
        return self.request if tells else None

    def end(self, end: Any) -> FinishReason | None:
        """Note the end of this request (``_core.RequestEnd``); returns why it ended, None for an error."""
        self._end = end
        if end.reason.name == "ERROR" or self.error is not None:
            return None
        text = self.text.finish()
        self._match = self.text.match
        reason = FinishReason.STOP_WORDS if self._match is not None else FINISH_REASONS[end.reason.name]
        last = self._unpublished.pop() if self._unpublished else Response(token_id=None)
        self._unpublished.append(last._replace(text=last.text + text, finish_reason=reason))
        return reason

    def publish(self) -> None:
        """Add unpublished responses to the list; after a stop word, only at the end. The caller holds the notifier."""
        if self._end is None and self._match is not None:
            return
        self.responses += self._unpublished
        self._unpublished.clear()
        if self._end is not None:
            self.timings = self._end.timings
            if self._end.reason.name == "ERROR":
                self.error = EngineError(f"the request failed: {printable(self._end.message)}")

    def fail(self, error: TrtllmLiteError) -> None:
        """End the request with ``error``; the caller holds the notifier."""
        if not self.ended:
            self.error = error

    def _tell_unstarted(self, reason: FinishReason | None) -> None:
        request = self.untold()
        if request is not None:
            request.tell_unstarted(reason)

    def _take_outputs(self, event: Any, token_ids: list[int], texts: list[str]) -> None:
        self.prompt_logprobs += event.prompt_logprobs
        if event.context_logits is not None:
            self._context_logits.append(event.context_logits)
        if self._context_logits and (token_ids or event.hypotheses):
            self.context_logits, self._context_logits = np.concatenate(self._context_logits), []
        if event.hypotheses:
            self.hypotheses = [self._hypothesis(tokens, score) for tokens, score in event.hypotheses]
        no_values = [None] * len(token_ids)
        logprobs, logits = event.logprobs or no_values, event.generation_logits
        self._unpublished += [
            Response(token_id, text, logprobs=its_logprobs, generation_logits=its_logits)
            for token_id, text, its_logprobs, its_logits in zip(
                token_ids, texts, logprobs, no_values if logits is None else logits, strict=False
            )
        ]

    def _hypothesis(self, token_ids: list[int], score: float) -> Hypothesis:
        ended = token_ids[-1] in self.native.end_ids or token_ids[-1] in self.native.stop_token_ids
        text = self._new_text().text_of(token_ids, ends=ended)
        return Hypothesis(token_ids, text, score, FinishReason.END_ID if ended else FinishReason.LENGTH)
