"""Defines Pump: the only thread that polls an event loop; it hands every request what the loop delivers."""

import threading
from abc import ABC, abstractmethod
from typing import Any

from trtllm_lite.common.printable import one_line
from trtllm_lite.errors import EngineError
from trtllm_lite.runtime.core import core

_POLL_SECONDS = 60.0


class Pump(ABC):
    """A thread beside an event loop (a ``_core.Loop``, or a stand-in) that runs until :meth:`close`.

    Signals and timeouts cannot lose events: only this thread polls, and Python delivers signals to the main thread.
    Derived classes hold handles of requests weakly; a request whose handle nobody holds any more is cancelled.
    """

    def __init__(self, loop: Any) -> None:
        self.loop = loop
        self._home = core().HomeProcess()
        self._lock = threading.Lock()
        self._failure: EngineError | None = None
        self._thread = threading.Thread(target=self._run, name="trtllm_lite events", daemon=True)

    def start(self) -> None:
        """Start the thread, once the derived class is ready for what it delivers."""
        self._thread.start()

    @property
    def failure(self) -> EngineError | None:
        """The reason why nothing can be submitted any more, if the thread has failed."""
        return self._failure

    def close(self) -> None:
        """Cancel all requests, and end the thread."""
        self.loop.shut_down(drain=False)
        # The thread itself may drop the last handle, and with it the session, whose end calls this.
        if threading.current_thread() is not self._thread:
            self._thread.join()

    @abstractmethod
    def _deliver(self, *polled: Any) -> None:
        """Deliver what one poll has returned."""

    @abstractmethod
    def _end_all(self, failure: EngineError) -> None:
        """End all requests with ``failure``, after which nothing can be submitted."""

    def _run(self) -> None:
        try:
            while (polled := self.loop.poll(_POLL_SECONDS)) is not None:
                self._deliver(*polled)
        except BaseException as error:  # noqa: BLE001 - every waiting request must get the error
            reason = one_line(repr(error))
            failure = EngineError(f"the thread that delivers results failed ({reason}): open the engine again")
            with self._lock:
                self._failure = failure
            self.loop.shut_down(drain=False)
            self._end_all(failure)
