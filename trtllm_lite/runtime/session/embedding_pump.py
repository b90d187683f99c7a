"""Defines EmbeddingPump: hands every call its texts' embeddings."""

import weakref
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.errors import EngineError
from trtllm_lite.runtime.core import core
from trtllm_lite.runtime.session.embedding_handle import EmbeddingHandle, OnEnd, TextTimings, numbers_of
from trtllm_lite.runtime.session.notifier import WakeUps
from trtllm_lite.runtime.session.pump import Pump
from trtllm_lite.runtime.session.request import FinishReason
from trtllm_lite.runtime.session.request_handle import FINISH_REASONS


@dataclass(frozen=True, eq=False)
class _Call:
    """A call whose texts are in the event loop: its handle, and whom to tell of their ends."""

    handle: "weakref.ref[EmbeddingHandle]"
    on_end: OnEnd | None


class _Ends(NamedTuple):
    """What ``_core.EncoderLoop.poll`` returns."""

    ids: NDArray[np.int64]
    reasons: NDArray[np.uint8]
    lengths: NDArray[np.int32]
    seconds: NDArray[np.float64]
    rows: NDArray[np.float32]
    messages: dict[int, str]


class EmbeddingPump(Pump):
    """The pump of an encoder's event loop (``_core.EncoderLoop``, or a stand-in).

    Work per text is costly here, because the interpreter's lock is held, so that arrays are handed on as they are.
    """

    def __init__(self, loop: Any, tokens_per_row: int = 0) -> None:
        """``tokens_per_row`` counts the tokens of an image for each row that a vision tower makes; 0 for texts."""
        super().__init__(loop)
        self._tokens_per_row = tokens_per_row
        self._calls: dict[int, _Call] = {}
        """The call of each text in the event loop, by the id of its request."""
        self._flows = count()
        native = core().FinishReason
        self._reasons: dict[int, FinishReason | None] = {native.ERROR.value: None}
        self._reasons |= {native[name].value: reason for name, reason in FINISH_REASONS.items()}
        self._embedded = native.END_ID.value
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
        rows: Sequence[Any] = (),
    ) -> None:
        """Queue the texts of a handle, or images, whose ``rows`` (``_core.PromptRows``) take the place of their tokens.

        If this raises, none of them is embedded: LimitError or OverloadedError like ``EncoderLoop.submit``, and
        EngineError if the thread failed or this process is a fork.
        """
        self._home.check()  # checked before the lock is taken: in a fork the lock's copy may stay locked forever
        lengths = np.fromiter(map(len, texts), np.int32, len(texts))
        token_ids = np.concatenate(texts)
        with self._lock:  # the thread delivers no end of a text before its call is registered
            if self._failure is not None:
                raise self._failure
            service = {"flow": flow, "priority": priority, "timeout": timeout}
            first = self.loop.submit(token_ids, lengths, **service, **({"rows": list(rows)} if rows else {}))
            ids, cancel = range(first, first + len(texts)), self.loop.cancel
            handle.begin(ids)
            reference = weakref.ref(handle, lambda _: [cancel(request_id) for request_id in ids])
            self._calls.update(dict.fromkeys(ids, _Call(reference, handle.on_end)))

    def _deliver(self, *polled: Any) -> None:
        ends = _Ends(*polled)
        numbers: dict[_Call, list[int]] = defaultdict(list)
        with self._lock:  # so that a thread which has submitted one of these texts has registered its call
            for number, request_id in enumerate(ends.ids.tolist()):
                numbers[self._calls.pop(request_id)].append(number)
        for call, its_numbers in numbers.items():
            if call.on_end is not None:
                self._tell(call.on_end, ends, its_numbers)
        embedded = ends.reasons == self._embedded
        counts = embedded * (ends.lengths // self._tokens_per_row if self._tokens_per_row else 1)
        rows_before = np.cumsum(counts) - counts
        changed = []
        with WakeUps() as wake_ups:
            for call, its_numbers in numbers.items():
                handle = call.handle()
                if handle is None:
                    continue
                changed.append(handle)
                chosen = np.array(its_numbers)
                found = chosen[embedded[chosen]]
                with handle.notifier:
                    if len(found):
                        handle.take(ends.ids[found], ends.rows[numbers_of(rows_before[found], counts[found])])
                    for number in chosen[~embedded[chosen]].tolist():
                        request_id = int(ends.ids[number])
                        reason = self._reasons[int(ends.reasons[number])]
                        handle.fail(request_id, reason, ends.messages.get(request_id, ""))
                    if handle.ended:
                        handle.notifier.notify(wake_ups, [])
        for handle in changed:
            if handle.error is not None:
                handle.cancel()

    def _tell(self, on_end: OnEnd, ends: _Ends, numbers: Sequence[int]) -> None:
        """Call ``on_end`` for each of these texts."""
        for number in numbers:
            timings = TextTimings(int(ends.lengths[number]), *ends.seconds[number].tolist())
            on_end(self._reasons[int(ends.reasons[number])], timings)

    def _end_all(self, failure: EngineError) -> None:
        with self._lock:
            calls, self._calls = list(self._calls.values()), {}
        for call in calls:
            if call.on_end is not None:
                call.on_end(None, TextTimings(0, 0.0, 0.0))
        for handle in {handle for call in calls if (handle := call.handle()) is not None}:
            handle.end_with(failure)
