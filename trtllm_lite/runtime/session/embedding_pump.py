"""Defines EmbeddingPump: hands every call its texts' embeddings."""

import weakref
from collections import defaultdict
from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.errors import EngineError
from trtllm_lite.runtime.core import core
from trtllm_lite.runtime.session.embedding_handle import EmbeddingHandle, OnEnd
from trtllm_lite.runtime.session.notifier import WakeUps
from trtllm_lite.runtime.session.pump import Pump
from trtllm_lite.runtime.session.request_handle import FINISH_REASONS


class _Place(NamedTuple):
    """A text in the event loop: the handle of its call, its number there, and whom to tell of its end."""

    handle: "weakref.ref[EmbeddingHandle]"
    number: int
    on_end: OnEnd | None


class EmbeddingPump(Pump):
    """The pump of an encoder's event loop (``_core.EncoderLoop``, or a stand-in)."""

    def __init__(self, loop: Any) -> None:
        super().__init__(loop)
        self._places: dict[int, _Place] = {}
        self._flows = count()
        self.start()

    def new_flow(self) -> int:
        """The number of a caller, whose texts take turns with those of others."""
        return next(self._flows)

    def submit(
        self,
        handle: EmbeddingHandle,
        texts: Sequence[NDArray[np.int32]],
        flow: int,
        priority: int,
        timeout: float | None,
    ) -> None:
        """Queue the texts of a handle.

        If this raises, none of them is embedded: LimitError or OverloadedError like ``EncoderLoop.submit``, and
        EngineError if the thread failed or this process is a fork.
        """
        self._home.check()  # checked before the lock is taken: in a fork the lock's copy may stay locked forever
        lengths = np.fromiter(map(len, texts), np.int32, len(texts))
        with self._lock:  # the thread delivers no end of a text before its place is registered
            if self._failure is not None:
                raise self._failure
            ids = self.loop.submit(np.concatenate(texts), lengths, flow=flow, priority=priority, timeout=timeout)
            handle.begin(ids)
            cancel = self.loop.cancel
            reference = weakref.ref(handle, lambda _: [cancel(request_id) for request_id in ids])
            for number, request_id in enumerate(ids):
                self._places[request_id] = _Place(reference, number, handle.on_end)

    def _deliver(self, *polled: Any) -> None:
        ids, rows, ends = polled
        row_of = dict(zip(ids, rows, strict=True))
        with self._lock:  # so that a thread which has submitted one of these texts has registered its place
            ended = [(end, self._places.pop(end.request_id, None)) for end in ends]
        changed: dict[EmbeddingHandle, list[tuple[int, NDArray[np.float32] | None, Any]]] = defaultdict(list)
        for end, place in ended:
            if place is None:  # its submission was refused, as one of the texts beside it was
                continue
            if place.on_end is not None:
                place.on_end(FINISH_REASONS.get(end.reason.name), end.timings)
            handle = place.handle()
            if handle is not None:
                changed[handle].append((place.number, row_of.get(end.request_id), end))
        with WakeUps() as wake_ups:
            for handle, its_ends in changed.items():
                with handle.notifier:
                    for its_end in its_ends:
                        handle.take(*its_end)
                    if handle.ended:
                        handle.notifier.notify(wake_ups, [])
        for handle in changed:
            if handle.error is not None:
                handle.cancel()

    def _end_all(self, failure: EngineError) -> None:
        with self._lock:
            places, self._places = list(self._places.values()), {}
        for place in places:
            if place.on_end is not None:
                place.on_end(None, core().RequestTimings())
        for handle in {handle for place in places if (handle := place.handle()) is not None}:
            handle.end_with(failure)
