"""Requests on their way to the C++ event loop, and the responses that come back from it.

The loop runs by itself: requests are enqueued, responses awaited, requests cancelled. Nothing in this module knows text
or tokenizers.
"""

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from trtllm_lite.errors import ArgumentError, EngineError
from trtllm_lite.runtime.request import FinishReason, Request, Response

if TYPE_CHECKING:
    from trtllm_lite.runtime.session import Session

# Between two polls Python handles signals.
_POLL_SECONDS = 0.1
_FINISH_REASONS = {
    "END_ID": FinishReason.END_ID,
    "STOP_SEQUENCE": FinishReason.STOP_WORDS,
    "LENGTH": FinishReason.LENGTH,
}


class EventRouter:
    """Shares one event loop (``_core.EventLoop``, or a stand-in) among any number of :class:`BatchLoop` and threads.

    The loop has one consumer at a time: whoever waits first polls for all, and hands the others what is theirs.
    """

    def __init__(self, loop: Any) -> None:
        self.loop = loop
        self._changed = threading.Condition()
        self._polling = False
        self._owners: dict[int, BatchLoop] = {}

    def submit(self, owner: "BatchLoop", *arguments: Any, **options: Any) -> int:
        """``EventLoop.submit``; events of the request go to ``owner``."""
        with self._changed:  # no event is handed out before its owner is known
            request_id: int = self.loop.submit(*arguments, **options)
            self._owners[request_id] = owner
        return request_id

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Hand out events until ``ready``, which is only called while none are."""
        while True:
            with self._changed:
                while self._polling and not ready():
                    self._changed.wait()
                if ready():
                    return
                self._polling = True
            tokens: list[Any] = []
            ends: list[Any] = []
            try:
                tokens, ends = self.loop.poll(_POLL_SECONDS) or (tokens, ends)
            finally:
                with self._changed:
                    self._polling = False
                    self._hand_out(tokens, ends)
                    self._changed.notify_all()

    def _hand_out(self, tokens: list[Any], ends: list[Any]) -> None:
        end_of = {end.request_id: end for end in ends}
        for event in tokens:
            if event.request_id in self._owners:
                self._owners[event.request_id].take_token(event, end_of.get(event.request_id))
        for end in ends:
            owner = self._owners.pop(end.request_id, None)
            if owner is not None:
                owner.take_end(end)


class BatchLoop:
    """The requests of one caller among all that the event loop of a :class:`Session` runs.

    Use it as a context manager: leaving it cancels what is left and returns every block, whatever happened.
    """

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._running: set[int] = set()  # whose responses are wanted
        self._not_ended: set[int] = set()  # whose blocks are perhaps not yet back
        self._context_logits: dict[int, list[np.ndarray]] = {}
        self._responses: deque[Response] = deque()
        self._error: EngineError | None = None

    def __enter__(self) -> "BatchLoop":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @property
    def idle(self) -> bool:
        """Whether no request waits or runs, and every response has been taken."""
        return not self._running and not self._responses

    def enqueue_request(self, request: Request) -> int:
        """Queue a request (already checked against the limits); returns its id, unique within the session.

        Raises ArgumentError for a sampling parameter outside its range.
        """
        session = self._session
        params = _sampling_params(request, session.sampling_params())
        problems = params.violations(session.manifest.model.vocab_size)
        if problems:
            raise ArgumentError("\n".join(problems))
        request_id = session.router.submit(
            self,
            np.ascontiguousarray(request.prompt_ids, np.int32),
            params,
            context_logits=request.context_logits,
            generation_logits=request.generation_logits,
        )
        self._running.add(request_id)
        self._not_ended.add(request_id)
        return request_id

    def cancel_request(self, request_id: int) -> None:
        """End a request, within one step of the loop; a request that has ended already is left alone."""
        self._running.discard(request_id)
        self._responses = deque(entry for entry in self._responses if entry.request_id != request_id)
        self._session.router.loop.cancel(request_id)

    def close(self) -> None:
        """Cancel everything, and wait until its blocks are back."""
        for request_id in list(self._running):
            self.cancel_request(request_id)
        # An end that was polled but never handed out, because a signal came in between, is not waited for.
        loop = self._session.router.loop
        self._session.router.wait_until(lambda: not any(loop.cancel(entry) for entry in list(self._not_ended)))

    def await_responses(self) -> list[Response]:
        """Wait for generated tokens: those of one step, at most one of each request.

        Empty if nothing runs. Raises EngineError if a request failed; the others go on.
        """
        self._session.router.wait_until(lambda: bool(self._responses or self._error or not self._running))
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        step: dict[int, Response] = {}
        while self._responses and self._responses[0].request_id not in step:
            response = self._responses.popleft()
            step[response.request_id] = response
        return list(step.values())

    def take_token(self, event: Any, end: Any | None) -> None:
        """An event of one of these requests, and the request's end if it has come. Called by the router."""
        request_id = event.request_id
        if request_id not in self._running:
            return
        if event.context_logits is not None:
            self._context_logits.setdefault(request_id, []).append(event.context_logits)
        if event.token is None:
            return
        context = self._context_logits.pop(request_id, None)
        logits = event.generation_logits
        finish_reason = None
        if end is not None and event.index + 1 == end.timings.num_generated_tokens:
            finish_reason = _FINISH_REASONS.get(end.reason.name)
        self._responses.append(
            Response(
                request_id=request_id,
                token_id=event.token,
                finish_reason=finish_reason,
                context_logits=None if context is None else np.concatenate(context),
                generation_logits=None if logits is None else logits[0],
            )
        )

    def take_end(self, end: Any) -> None:
        """The end of one of these requests. Called by the router."""
        self._not_ended.discard(end.request_id)
        if end.request_id in self._running and end.reason.name not in _FINISH_REASONS:
            self._error = EngineError(f"a request failed: {end.message or end.reason.name.lower()}")
        self._running.discard(end.request_id)


def _sampling_params(request: Request, params: Any) -> Any:
    """``params`` (``sampling.SamplingParams``) filled with what ``request`` asks for."""
    sampling = request.sampling
    params.max_tokens = request.max_new_tokens
    params.end_ids = sorted(request.end_ids)
    params.temperature = sampling.temperature
    params.top_k = sampling.top_k
    params.top_p = sampling.top_p
    params.min_p = sampling.min_p
    params.seed = sampling.seed
    return params
