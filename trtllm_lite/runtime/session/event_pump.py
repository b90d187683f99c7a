"""EventPump: the one thread that polls the event loop and hands every request its events."""

import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from trtllm_lite.errors import EngineError
from trtllm_lite.printable import one_line
from trtllm_lite.runtime.core import core
from trtllm_lite.runtime.session.notifier import Notifier, WakeUps
from trtllm_lite.runtime.session.request_handle import RequestHandle
from trtllm_lite.runtime.session.stats import LatencyLog

_POLL_SECONDS = 60.0


class EventPump:
    """A thread beside an event loop (``_core.EventLoop``, or a stand-in) that runs until :meth:`close`.

    Signals and timeouts cannot lose events: only this thread polls, and Python delivers signals to the main thread. The
    pump holds handles weakly; a request whose handle nobody holds any more is cancelled.
    """

    def __init__(self, loop: Any) -> None:
        self.loop = loop
        self.latencies = LatencyLog()
        self._home = core().HomeProcess()
        self._lock = threading.Lock()
        self._handles: dict[int, weakref.ref[RequestHandle]] = {}
        self._on_end: dict[int, Callable[[], None]] = {}
        self._failure: EngineError | None = None
        self._thread = threading.Thread(target=self._run, name="trtllm_lite events", daemon=True)
        self._thread.start()

    def submit(
        self,
        handle: RequestHandle,
        adapter: Any = None,
        waited: float = 0.0,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        """Queue the handle's request, which runs with ``adapter`` (``_core.Adapter``) and has ``waited`` for it.

        The pump's thread calls ``on_end`` when the request has ended, whether anybody holds its handle or not.
        Raises LimitError as ``EventLoop.submit``, EngineError if this thread failed or in a fork of the process.
        """
        self._home.check()  # before the lock is taken: a fork's copy of it may stay locked for ever
        request, params, loop = handle.request, handle.request.params, self.loop
        with self._lock:  # the thread hands out no event of the request before its handle is entered
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
            )
            if on_end is not None:
                self._on_end[request_id] = on_end
            self._handles[request_id] = weakref.ref(handle, lambda _: loop.cancel(request_id))

    def close(self) -> None:
        """End all requests as cancelled, and the thread."""
        self.loop.shut_down(drain=False)
        # The thread itself may drop the last handle, and so the session, whose end calls this.
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        try:
            while (events := self.loop.poll(_POLL_SECONDS)) is not None:
                self._deliver(*events)
        except BaseException as error:  # noqa: BLE001 - every waiting request must get the error
            reason = one_line(repr(error))
            self._fail(EngineError(f"the thread that delivers results failed ({reason}): open the engine again"))

    def _deliver(self, tokens: list[Any], ends: list[Any]) -> None:
        """Hand out the events of one poll. Waiting threads and coroutines see all of them at once."""
        events_of: dict[int, list[Any]] = defaultdict(list)
        for event in tokens:
            events_of[event.request_id].append(event)
        end_of = {end.request_id: end for end in ends}
        for end in ends:
            self.latencies.add(end.timings)
        changed: dict[Notifier, list[RequestHandle]] = defaultdict(list)
        for request_id in events_of | end_of:
            handle = self._handle(request_id)
            if handle is not None:
                self._stage(handle, events_of[request_id], end_of.get(request_id))
                changed[handle.notifier].append(handle)
            elif request_id not in end_of:
                self.loop.cancel(request_id)
        with self._lock:
            for request_id in end_of:
                self._handles.pop(request_id, None)
            ended = [self._on_end.pop(request_id) for request_id in end_of if request_id in self._on_end]
        for on_end in ended:
            on_end()
        with WakeUps() as wake_ups:
            for notifier, handles in changed.items():
                with notifier:
                    for handle in handles:
                        handle.publish()
                    notifier.notify(wake_ups, handles)

    def _handle(self, request_id: int) -> RequestHandle | None:
        with self._lock:
            reference = self._handles.get(request_id)
        return None if reference is None else reference()

    def _stage(self, handle: RequestHandle, events: list[Any], end: Any | None) -> None:
        """Give a handle its events; an error in handling them ends this request alone."""
        try:
            handle.stage(events, end)
        except Exception as error:  # noqa: BLE001 - tokenizers raise anything
            handle.cancel()
            with handle.notifier:
                handle.fail(EngineError(f"the request failed while its output was handled: {one_line(repr(error))}"))

    def _fail(self, failure: EngineError) -> None:
        with self._lock:
            self._failure = failure
            handles = [handle for reference in self._handles.values() if (handle := reference()) is not None]
            ended, self._on_end = list(self._on_end.values()), {}
        self.loop.shut_down(drain=False)
        for handle in handles:
            handle.end_with(failure)
        for on_end in ended:  # what waits for one of them fails, too
            on_end()
