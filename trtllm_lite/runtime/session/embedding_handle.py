"""Defines EmbeddingHandle: the texts of one call in the event loop of an encoder, as their submitter sees them."""

from collections.abc import Callable
from copy import copy
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.common.printable import printable
from trtllm_lite.errors import EngineError, LimitError, TrtllmLiteError
from trtllm_lite.runtime.session.notifier import Notifier, WakeUps
from trtllm_lite.runtime.session.request import FinishReason


class TextTimings(NamedTuple):
    """The number of a text's tokens, and seconds from its submission to the step that takes it, and to its end."""

    num_prompt_tokens: int
    queue_seconds: float
    total_seconds: float


OnEnd = Callable[[FinishReason | None, TextTimings], None]
"""Takes why a text ended: END_ID if it was embedded, None for an error."""


def numbers_of(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers starts[i], starts[i] + 1, … of counts[i] rows each, one after the other."""
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(int(counts.sum()))


class EmbeddingHandle:
    """The result of ``Embedder.submit``. Its texts are cancelled when nothing refers to it any more.

    ``on_end`` is called once for each text that has ended, whether or not the handle still exists, by the thread that
    delivers results, before the end is visible elsewhere; it must be quick, and raise nothing.
    """

    def __init__(
        self,
        counts: NDArray[np.int64],
        timeout: float | None,
        cancel: Callable[[int], object],
        on_end: OnEnd | None,
        what: str = "text",
    ) -> None:
        """``counts`` are the numbers of rows of each text, 1, or of each image; ``what`` is the word for either."""
        self.on_end = on_end
        self.error: Exception | None = None
        """The error that ended the call, or None."""
        self.notifier = Notifier()
        self._request_ids = range(0)
        self._counts = counts
        self._starts = np.cumsum(counts) - counts
        self._rows: NDArray[np.float32] = np.empty((int(counts.sum()), 0), np.float32)
        self._num_left = len(counts)
        self._what = what
        self._timeout = timeout
        self._cancel = cancel

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def ended(self) -> bool:
        """Whether all texts are embedded, or an error has ended the call."""
        return self._num_left == 0 or self.error is not None

    def cancel(self) -> None:
        """End the texts that have not ended yet, within a step of the event loop."""
        if self._num_left:
            for request_id in self._request_ids:
                self._cancel(request_id)

    def result(self) -> NDArray[np.float32]:
        """Wait until the call has ended; float32[rows, embedding_size], a row of each text, or some of each image.

        Raises EngineError if a text failed or was cancelled, LimitError if the timeout has passed.
        """
        self.notifier.wait_until(lambda: self.ended)
        return self._result()

    async def wait(self) -> NDArray[np.float32]:
        """Do what :meth:`result` does, in a coroutine."""
        await self.notifier.until(lambda: self.ended)
        return self._result()

    def end_with(self, error: Exception) -> None:
        """End the call with ``error``, and wake all who wait for it."""
        with WakeUps() as wake_ups, self.notifier:
            if not self.ended:
                self.error = error
            self.notifier.notify(wake_ups, [])
        self.cancel()

    # The pump calls the following methods; it holds the notifier while it calls take() and fail().

    def begin(self, request_ids: range) -> None:
        """Note the ids of the texts' requests."""
        self._request_ids = request_ids

    def take(self, request_ids: NDArray[np.int64], rows: NDArray[np.float32]) -> None:
        """Take embeddings."""
        if not self._rows.size:
            self._rows = np.empty((len(self._rows), rows.shape[1]), np.float32)
        numbers = request_ids - self._request_ids.start
        self._rows[numbers_of(self._starts[numbers], self._counts[numbers])] = rows
        self._num_left -= len(numbers)

    def fail(self, request_id: int, reason: FinishReason | None, message: str) -> None:
        """Note the end of a text that has no embedding; the first such end is that of the call."""
        self._num_left -= 1
        if self.error is not None:
            return
        number = request_id - self._request_ids.start
        what = f"the {self._what}" if len(self) == 1 else f"{self._what} {number}"
        if reason is None:
            self.error = EngineError(f"{what} was not embedded: {printable(message)}")
        elif reason is FinishReason.TIMEOUT:
            late = f"timeout: {what} was not embedded within {self._timeout:g} s: wait longer, or send less"
            self.error = LimitError(late)
        else:
            self.error = EngineError(f"{what} was cancelled: submit it again, or load the engine if it was shut down")

    def _result(self) -> NDArray[np.float32]:
        if isinstance(self.error, TrtllmLiteError):
            raise copy(self.error)  # a traceback in the kept error would keep the embedder alive
        if self.error is not None:
            raise self.error
        return self._rows
