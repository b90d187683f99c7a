"""Keeps adapters in memory, and holds requests until their adapters are loaded."""

import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from trtllm_lite.common.printable import one_line
from trtllm_lite.errors import ArgumentError, EngineError, OverloadedError, TrtllmLiteError, shown
from trtllm_lite.runtime.lora.entries import Entries, Entry
from trtllm_lite.runtime.lora.request import LoRARequest
from trtllm_lite.runtime.session.request import FinishReason, Request
from trtllm_lite.runtime.session.request_handle import RequestHandle

MAX_WAITING = 1 << 12  # requests that wait for their adapters, at most

# Makes the native adapter of a request; runs on a thread of its own.
Load = Callable[[LoRARequest], Any]
# Passes a request to the event loop: handle, adapter, seconds it has waited, function to call at its end.
Start = Callable[[RequestHandle, Any, float, Callable[[], None]], None]


class Slots(Protocol):
    """The slots for adapters in a device's memory; the loader's thread calls the methods."""

    def place(self, adapter: Any, slot: int) -> None:
        """Put a native adapter into a slot that no request uses."""

    def empty(self, slot: int) -> None:
        """Make the memory of a slot that no request uses ready for other slots."""

    def release(self, slot: int) -> bool:
        """Empty a slot that no request uses; False if the KV cache got none of the memory that it lacks."""

    def must_wait(self, slot: int) -> bool:
        """Whether placing an adapter in the slot would wait for memory until requests end."""


@dataclass(frozen=True)
class _Waiting:
    handle: weakref.ref[RequestHandle]
    request: Request
    lora: LoRARequest
    since: float
    deadline: float  # infinity if there is none


class Adapters:
    """Loads adapters when requests need them and drops the least recently used.

    At most ``max_loras`` adapters are in use by running requests, at most ``max_cpu_loras`` in memory; an adapter in
    use is never dropped. On a device with its own memory, an adapter is placed in one of ``max_loras`` ``slots`` before
    it is used, instead of the least recently used. Later requests cannot overtake a request that waits for
    room, but they overtake one whose adapter is being loaded or placed. Any thread may call the methods.
    """

    def __init__(
        self, load: Load, start: Start, max_loras: int, max_cpu_loras: int, slots: Slots | None = None
    ) -> None:
        self._load, self._start, self._slots = load, start, slots
        self.max_loras = max_loras
        self._lock = threading.RLock()
        self._entries = Entries(max_loras, max_cpu_loras)
        self._waiting: deque[_Waiting] = deque()
        self._loader = ThreadPoolExecutor(1, "trtllm_lite adapters")
        self._closed = False
        self._makes_room = False  # a slot is to be emptied as soon as its adapter is not in use
        self._timer: threading.Timer | None = None

    def submit(self, handle: RequestHandle, lora: LoRARequest) -> None:
        """Start the request when its adapter is loaded; a failure becomes an error of the handle.

        Raises ArgumentError if another adapter has the id, OverloadedError if too many requests wait.
        """
        with self._lock:
            known = [entry.lora for entry in self._entries] + [waiting.lora for waiting in self._waiting]
            for other in known:
                if other.lora_int_id == lora.lora_int_id and other != lora:
                    raise ArgumentError(
                        f"lora_int_id {lora.lora_int_id} is {shown(other.lora_name)} from {shown(other.lora_path)}, "
                        f"and {shown(lora.lora_name)} from {shown(lora.lora_path)}: give each adapter an id of its own"
                    )
            if self._closed or len(self._waiting) >= MAX_WAITING:
                raise OverloadedError(
                    f"expected fewer than {MAX_WAITING} requests that wait for their adapters: submit again when some "
                    "have started"
                )
            now, timeout = time.monotonic(), handle.request.timeout
            deadline = math.inf if timeout is None else now + timeout
            self._waiting.append(_Waiting(weakref.ref(handle), handle.request, lora, now, deadline))
            self._advance()

    def check(self, path: str, root: str | None = None) -> None:
        """Read the files of an adapter, below ``root`` if it is given, without keeping it; any thread may call this.

        Raises EngineError or LimitError if the engine cannot run with it.
        """
        self._load(LoRARequest("unnamed", 1, path, root))

    def keep(self, lora: LoRARequest, adapter: Any) -> None:
        """Keep a native adapter that was made elsewhere, as if it had been loaded.

        Raises ArgumentError if ``max_cpu_loras`` adapters are in memory and none can be dropped.
        """
        with self._lock:
            if not self._entries.add(Entry(lora, adapter)):
                raise ArgumentError(f"there is no room in memory for {shown(lora.lora_name)}: raise max_cpu_loras")

    def withdraw(self, handle: RequestHandle) -> bool:
        """Forget a waiting request; False if it does not wait."""
        with self._lock:
            kept = [waiting for waiting in self._waiting if waiting.handle() is not handle]
            found = len(kept) < len(self._waiting)
            self._waiting = deque(kept)
            if found:
                self._advance()
            return found

    def make_room(self) -> None:
        """Give memory of slots back to the KV cache, from the least recently used adapter that is not in use.

        If all are in use, that happens as soon as one is not.
        """
        with self._lock:
            self._makes_room = self._slots is not None
            self._empty_slot()

    def loaded(self) -> tuple[str, ...]:
        """Names of the adapters in memory, the least recently used first."""
        with self._lock:
            return tuple(entry.lora.lora_name for entry in self._entries if entry.adapter is not None)

    def in_use(self) -> tuple[list[str], list[str]]:
        """Names of the adapters of running and waiting requests, each once."""
        with self._lock:
            running = [entry.lora.lora_name for entry in self._entries if entry.num_running > 0]
            return running, [waiting.lora.lora_name for waiting in self._waiting]

    def close(self) -> None:
        """End waiting requests with an error, and load no more adapters."""
        self._end_all(EngineError("this model was shut down and takes no more requests: load it again"))

    def _end_all(self, error: TrtllmLiteError) -> None:
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, deque()
            self._wait_for_deadlines()
        self._loader.shutdown(wait=False, cancel_futures=True)
        for one in waiting:
            _fail(one, error)

    def _advance(self) -> None:
        """Start requests that can start, in order of arrival, and load missing adapters. The caller holds the lock."""
        blocked, wanted = False, set[int]()
        for waiting in list(self._waiting):
            handle = waiting.handle()
            if handle is None or waiting.deadline <= time.monotonic():
                self._waiting.remove(waiting)
                if handle is None:
                    waiting.request.tell_unstarted(FinishReason.CANCELLED)
                else:
                    handle.end_unstarted("TIMED_OUT")
                continue
            lora_id = waiting.lora.lora_int_id
            entry = self._entries.of(lora_id)
            if entry is None:
                blocked = blocked or not self._begin_loading(waiting.lora, wanted)
            elif entry.adapter is not None and not entry.is_moving:
                if blocked or not self._entries.may_use(entry):
                    blocked = True
                elif self._slots is not None and entry.slot is None:
                    blocked = not self._begin_placing(entry)
                else:
                    self._waiting.remove(waiting)
                    self._run(handle, waiting, entry)
            wanted.add(lora_id)
        self._wait_for_deadlines()

    def _wait_for_deadlines(self) -> None:
        """Advance again when the first deadline of the waiting requests has passed."""
        if self._timer is not None:
            self._timer.cancel()
        seconds = min((waiting.deadline for waiting in self._waiting), default=math.inf) - time.monotonic()
        if seconds < threading.TIMEOUT_MAX:
            self._timer = threading.Timer(max(seconds, 0.0), self._look_again)
            self._timer.daemon = True
            self._timer.start()

    def _look_again(self) -> None:
        with self._lock:
            self._advance()

    def _begin_loading(self, lora: LoRARequest, wanted: set[int]) -> bool:
        """Load an adapter, in place of one that is neither in use nor ``wanted``; False if there is no room."""
        entry = Entry(lora)
        if not self._entries.add(entry, wanted):
            return False
        self._loader.submit(self._guarded, self._load_one, entry)
        return True

    def _guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do ``work`` on the loader's thread; an unforeseen error fails all waiting requests."""
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001 - every waiting request must get the error
            reason = one_line(repr(error))
            self._end_all(EngineError(f"the thread that loads adapters failed ({reason}): open the engine again"))

    def _load_one(self, entry: Entry) -> None:
        adapter, error = _tried(lambda: self._load(entry.lora), "loading")
        with self._lock:
            entry.adapter = adapter
            if error is not None:
                self._drop(entry.lora, error)
            self._advance()

    def _begin_placing(self, entry: Entry) -> bool:
        """Place an adapter; False if there is no slot yet, because one is being emptied."""
        slot = self._entries.take_slot(entry)
        if slot is None:
            return False
        self._loader.submit(self._guarded, self._place_one, entry, slot)
        return True

    def _place_one(self, entry: Entry, slot: int) -> None:
        assert self._slots is not None
        slots = self._slots
        while slots.must_wait(slot) and self._empty_idle_slot():
            pass  # idle adapters make room before requests have to
        _, error = _tried(lambda: slots.place(entry.adapter, slot), "placing")
        with self._lock:
            entry.is_moving = False
            if error is not None:
                self._drop(entry.lora, error)
            self._advance()

    def _empty_slot(self) -> None:
        """Empty the slot of an adapter that is not in use, if the KV cache wants memory back."""
        slot = self._entries.leave_slot() if self._makes_room and not self._closed else None
        if slot is not None:
            self._makes_room = False
            self._loader.submit(self._guarded, self._empty_one, slot)

    def _empty_one(self, slot: int) -> None:
        assert self._slots is not None
        gave = self._slots.release(slot)
        with self._lock:
            self._entries.emptied(slot)
            self._makes_room = not gave
            self._advance()
            self._empty_slot()

    def _empty_idle_slot(self) -> bool:
        """Empty a slot whose adapter is not in use, for another one; False if there is none."""
        assert self._slots is not None
        with self._lock:
            slot = self._entries.leave_slot()
        if slot is not None:
            self._slots.empty(slot)
            with self._lock:
                self._entries.emptied(slot)
        return slot is not None

    def _drop(self, lora: LoRARequest, error: TrtllmLiteError) -> None:
        """Forget an adapter, and fail the requests that wait for it."""
        self._entries.drop(lora)
        failed = [waiting for waiting in self._waiting if waiting.lora == lora]
        self._waiting = deque(waiting for waiting in self._waiting if waiting.lora != lora)
        for waiting in failed:
            _fail(waiting, error)

    def _run(self, handle: RequestHandle, waiting: _Waiting, entry: Entry) -> None:
        self._entries.use(entry)
        try:
            self._start(handle, entry.adapter, time.monotonic() - waiting.since, lambda: self._ended(entry))
        except TrtllmLiteError as error:
            entry.num_running -= 1
            _fail(waiting, error)

    def _ended(self, entry: Entry) -> None:
        with self._lock:
            entry.num_running -= 1
            self._advance()
            self._empty_slot()


def _tried(work: Callable[[], Any], what: str) -> tuple[Any, TrtllmLiteError | None]:
    """The result of ``work``, or the error for the requests that wait for it."""
    try:
        return work(), None
    except TrtllmLiteError as failure:
        failure.__context__ = None  # the traceback is dropped as well: its frames would keep the engine alive
        return None, failure.with_traceback(None)
    except Exception as failure:  # noqa: BLE001 - the requests must end
        return None, EngineError(f"{what} the adapter failed: {one_line(repr(failure))}")


def _fail(waiting: _Waiting, error: TrtllmLiteError) -> None:
    handle = waiting.handle()
    if handle is not None:
        handle.end_with(error)
