"""Defines EmbeddingHandle: the texts of one call in the event loop of an encoder, as their submitter sees them."""

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.common.printable import printable
from trtllm_lite.errors import EngineError, LimitError, TrtllmLiteError
from trtllm_lite.runtime.session.notifier import Notifier, WakeUps
from trtllm_lite.runtime.session.request import FinishReason

OnEnd = Callable[[FinishReason | None, Any], None]
"""Takes why a text ended (None for an error), and its ``_core.RequestTimings``."""


class EmbeddingHandle:
    """The result of ``Embedder.submit``. Its texts are cancelled when nothing refers to it any more.

    ``on_end`` is called once for each text that has ended, whether or not the handle still exists, by the thread that
    delivers results, before the end is visible elsewhere; it must be quick, and raise nothing.
    """

    def __init__(
        self, num_texts: int, timeout: float | None, cancel: Callable[[int], object], on_end: OnEnd | None
    ) -> None:
        self.on_end = on_end
        self.error: Exception | None = None
        """The error that ended the call, or None."""
        self.notifier = Notifier()
        self._request_ids: Sequence[int] = ()
        self._rows: list[NDArray[np.float32] | None] = [None] * num_texts
        self._num_left = num_texts
        self._timeout = timeout
        self._cancel = cancel

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def ended(self) -> bool:
        """Whether all texts are embedded, or an error has ended the call."""
        return self._num_left == 0 or self.error is not None

    def cancel(self) -> None:
        """End the texts that have not ended yet, within a step of the event loop."""
        for request_id in self._request_ids:
            self._cancel(request_id)

    def result(self) -> list[NDArray[np.float32]]:
        """Wait until the call has ended; the embedding of each text, float32[embedding_size].

        Raises EngineError if a text failed or was cancelled, LimitError if the timeout has passed.
        """
        self.notifier.wait_until(lambda: self.ended)
        return self._result()

    async def wait(self) -> list[NDArray[np.float32]]:
        """Do what :meth:`result` does, in a coroutine."""
        await self.notifier.until(lambda: self.ended)
        return self._result()

    def end_with(self, error: Exception) -> None:
        """End the call with ``error``, and wake all who wait for it."""
        with WakeUps() as wake_ups, self.notifier:
            if not self.ended:
                self._fail(error)
            self.notifier.notify(wake_ups, [])
        self.cancel()

    # The pump calls the following methods; it holds the notifier while it calls take().

    def begin(self, request_ids: Sequence[int]) -> None:
        """Note the ids of the texts' requests."""
        self._request_ids = request_ids

    def take(self, place: int, row: NDArray[np.float32] | None, end: Any) -> None:
        """Take the end of text number ``place`` (``_core.RequestEnd``), and its embedding if it has one."""
        self._num_left -= 1
        self._rows[place] = row
        if row is not None:
            return
        what = "the text" if len(self) == 1 else f"text {place}"
        match end.reason.name:
            case "ERROR":
                self._fail(EngineError(f"{what} was not embedded: {printable(end.message)}"))
            case "TIMED_OUT":
                self._fail(
                    LimitError(
                        f"timeout: {what} was not embedded within {self._timeout:g} s: wait longer, or send less"
                    )
                )
            case _:
                self._fail(
                    EngineError(f"{what} was cancelled: submit it again, or load the engine if it was shut down")
                )

    def _fail(self, error: Exception) -> None:
        if self.error is None:
            self.error = error

    def _result(self) -> list[NDArray[np.float32]]:
        if isinstance(self.error, TrtllmLiteError):
            raise copy(self.error)  # a traceback in the kept error would keep the embedder alive
        if self.error is not None:
            raise self.error
        return [row for row in self._rows if row is not None]
