"""Defines EventPump: hands every request of a decoder its tokens and their texts."""

import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from trtllm_lite.common.printable import one_line
from trtllm_lite.errors import EngineError
from trtllm_lite.runtime.core import core
from trtllm_lite.runtime.session.notifier import Notifier, WakeUps
from trtllm_lite.runtime.session.pump import Pump
from trtllm_lite.runtime.session.request import FinishReason, Request
from trtllm_lite.runtime.session.request_handle import FINISH_REASONS, RequestHandle
from trtllm_lite.runtime.session.stats import TOKEN_GAP_BOUNDS, LatencyLog


def _nobody() -> None:
    """Stands in for a reference to a missing handle."""


class EventPump(Pump):
    """The pump of a decoder's event loop (``_core.EventLoop``, or a stand-in)."""

    def __init__(self, loop: Any) -> None:
        super().__init__(loop)
        self.latencies = LatencyLog()
        self._texts = core().TextPump(TOKEN_GAP_BOUNDS)
        self._handles: dict[int, weakref.ref[RequestHandle]] = {}
        self._on_end: dict[int, Callable[[], None]] = {}
        self._observed: dict[int, Request] = {}
        """Requests with an ``on_end`` function to call at their ends."""
        self.on_short_of_blocks: Callable[[], None] | None = None
        """Called by the pump's thread when requests wait for blocks whose memory the loop has lent."""
        self.start()

    def submit(
        self,
        handle: RequestHandle,
        adapter: Any = None,
        waited: float = 0.0,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        """Queue the handle's request to run with ``adapter`` (``_core.Adapter``), for which it has ``waited`` seconds.

        The pump's thread calls ``on_end`` when the request has ended, whether or not its handle still exists. Raises
        LimitError like ``EventLoop.submit``, and EngineError if that thread failed or this process is a fork.
        """
        self._home.check()  # checked before the lock is taken: in a fork the lock's copy may stay locked forever
        request, params, loop = handle.request, handle.request.params, self.loop
        with self._lock:  # the thread delivers no event of the request before its handle is registered
            if self._failure is not None:
                raise self._failure
            handle.request_id = request_id = loop.submit(
                np.ascontiguousarray(request.prompt_ids, np.int32),
                handle.native,
                stop_sequences=params.stop_words.sequences,
                priority=request.priority,
                timeout=None if request.timeout is None else max(request.timeout - waited, 0.0),
                cache_salt=request.cache_salt,
                sequence_index=request.sequence_index,
                context_logits=params.return_context_logits,
                generation_logits=params.return_generation_logits,
                beams=params.to_native_beams(),
                grammar=handle.grammar,
                adapter=adapter,
                rows=handle.rows,
            )
            if on_end is not None:
                self._on_end[request_id] = on_end
            observed = handle.untold()
            if observed is not None:
                self._observed[request_id] = observed
            self._handles[request_id] = weakref.ref(handle, lambda _: loop.cancel(request_id))

    def token_gaps(self) -> tuple[list[int], float]:
        """Histogram of gaps between the tokens of requests: counts by bucket, and the sum of all gaps in seconds.

        The buckets are those of TOKEN_GAP_BOUNDS, and one above them. As in vLLM, a gap is the time between two
        deliveries of a request, whatever the number of their tokens; the first delivery ends no gap.
        """
        counts, seconds = self._texts.gaps()
        return counts, seconds

    def close(self) -> None:
        """Cancel all requests, and end the thread."""
        super().close()
        self.on_short_of_blocks = None  # its owner may hold this pump: together they would live on

    def _deliver(self, *polled: Any) -> None:
        self._deliver_events(*polled)
        on_short_of_blocks = self.on_short_of_blocks
        if on_short_of_blocks is not None and self.loop.short_of_blocks:
            on_short_of_blocks()

    def _deliver_events(self, events: list[Any], ends: list[Any]) -> None:
        """Deliver the events of one poll. Waiting threads and coroutines see all of them at once.

        Work per token is costly here, because the interpreter's lock is held, except in TextPump.
        """
        holder_of = self._handles.get
        with self._lock:  # so that a thread which has submitted one of these requests has registered its handle
            holders = [holder_of(event.request_id, _nobody)() for event in events]
            ending = [(holder_of(end.request_id, _nobody)(), end) for end in ends]
        if None in holders:
            self._cancel_unheld(holders, events, ends)
            events = [event for handle, event in zip(holders, events, strict=True) if handle is not None]
        handles = [handle for handle in holders if handle is not None]
        self._collect(handles, events, ends)
        for handle, end in ending:
            self.latencies.add(end.timings)
            reason = FINISH_REASONS.get(end.reason.name) if handle is None else self._end(handle, end)
            self._tell(end.request_id, reason, end.timings)
        self._forget(ends)
        handles += [handle for handle, _ in ending if handle is not None]
        changed: dict[Notifier, dict[RequestHandle, None]] = defaultdict(dict)
        for handle in handles:
            changed[handle.notifier][handle] = None
        with WakeUps() as wake_ups:
            for notifier, its_handles in changed.items():
                with notifier:
                    for handle in its_handles:
                        handle.publish()
                    notifier.notify(wake_ups, list(its_handles))

    def _cancel_unheld(self, holders: list[RequestHandle | None], events: list[Any], ends: list[Any]) -> None:
        """Cancel requests that have not ended and whose handles no longer exist."""
        ended = {end.request_id for end in ends}
        for handle, event in zip(holders, events, strict=True):
            if handle is None and event.request_id not in ended:
                self.loop.cancel(event.request_id)

    def _collect(self, handles: list[RequestHandle], events: list[Any], ends: list[Any]) -> None:
        """Give each handle its event, with the text of its tokens."""
        runs = [event.tokens for event in events]
        texts, stopped, failed = self._texts.push([handle.text for handle in handles], runs, _last_of(events, ends))
        for handle, event, tokens, pieces in zip(handles, events, runs, texts, strict=True):
            try:
                handle.collect(tokens, pieces, event if event.has_outputs else None)
            except Exception as error:  # noqa: BLE001 - other requests are not concerned by any error here
                _fail_alone(handle, one_line(repr(error)))
        for row in stopped:
            handles[row].stop()
        for row, message in failed:
            _fail_alone(handles[row], one_line(message))

    def _end(self, handle: RequestHandle, end: Any) -> FinishReason | None:
        try:
            return handle.end(end)
        except Exception as error:  # noqa: BLE001 - other requests are not concerned by any error here
            _fail_alone(handle, one_line(repr(error)))
            return None

    def _tell(self, request_id: int, reason: FinishReason | None, timings: Any) -> None:
        """Call the ``on_end`` function of a request, if it has one."""
        request = self._observed.pop(request_id, None)
        if request is not None and request.on_end is not None:
            request.on_end(request, reason, timings)

    def _forget(self, ends: list[Any]) -> None:
        """Forget the requests that have ended, and call their ``on_end`` functions."""
        if not ends:
            return
        with self._lock:
            for end in ends:
                self._handles.pop(end.request_id, None)
            ended = [self._on_end.pop(end.request_id) for end in ends if end.request_id in self._on_end]
        for on_end in ended:
            on_end()

    def _end_all(self, failure: EngineError) -> None:
        with self._lock:
            handles = [handle for reference in self._handles.values() if (handle := reference()) is not None]
            ended, self._on_end = list(self._on_end.values()), {}
        for request_id in list(self._observed):
            self._tell(request_id, None, core().RequestTimings())
        for handle in handles:
            handle.end_with(failure)
        for on_end in ended:  # requests that wait for one of these ends fail as well
            on_end()


def _last_of(events: list[Any], ends: list[Any]) -> list[int]:
    """The positions of each event that is the last one of a request, if an end token ended that request."""
    by_token = {end.request_id for end in ends if end.reason.name == "END_ID"}
    if not by_token:
        return []
    return list({event.request_id: row for row, event in enumerate(events) if event.request_id in by_token}.values())


def _fail_alone(handle: RequestHandle, reason: str) -> None:
    handle.cancel()
    with handle.notifier:
        handle.fail(EngineError(f"the request failed while its output was handled: {reason}"))
