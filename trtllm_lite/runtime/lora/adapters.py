"""Which adapters are in memory, and which requests wait for theirs."""

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from trtllm_lite.errors import ArgumentError, EngineError, OverloadedError, TrtllmLiteError, shown
from trtllm_lite.printable import one_line
from trtllm_lite.runtime.lora.request import LoRARequest
from trtllm_lite.runtime.session.request_handle import RequestHandle

MAX_WAITING = 1 << 12  # requests that wait for their adapters

# Makes the native adapter of a request; runs on a thread of its own.
Load = Callable[[LoRARequest], Any]
# Puts a native adapter into a slot of the device's memory; runs on the same thread.
Place = Callable[[Any, int], None]
# Gives a request to the event loop: handle, adapter, seconds it has waited, what to call at its end.
Start = Callable[[RequestHandle, Any, float, Callable[[], None]], None]


@dataclass
class _Entry:
    """An adapter that is loaded, or (``adapter`` is None) being loaded. Requests that run it: ``num_running``.

    ``slot`` is its place in the device's memory, if it has one; it is on the way there while it ``is_moving``.
    """

    lora: LoRARequest
    adapter: Any = None
    num_running: int = 0
    slot: int | None = None
    is_moving: bool = False

    @property
    def is_in_use(self) -> bool:
        return self.num_running > 0 or self.is_moving


@dataclass(frozen=True)
class _Waiting:
    handle: weakref.ref[RequestHandle]
    lora: LoRARequest
    since: float


class Adapters:
    """Loads adapters when requests ask for them and drops those that were unused for longest.

    At most ``max_loras`` adapters are in use by running requests, at most ``max_cpu_loras`` in memory; one in use is
    never dropped. On a device with memory of its own, ``place`` puts an adapter into one of ``max_loras`` slots before
    it is used; there, too, it takes the place of the one that was unused for longest. A request that waits for room
    lets none that came later pass it; one whose adapter is being loaded or placed lets others pass. Any thread may call
    the methods.
    """

    def __init__(
        self, load: Load, start: Start, max_loras: int, max_cpu_loras: int, place: Place | None = None
    ) -> None:
        self._load, self._start, self._place = load, start, place
        self._max_loras, self._max_cpu_loras = max_loras, max_cpu_loras
        self._lock = threading.RLock()
        self._entries: dict[int, _Entry] = {}  # the least recently used first
        self._waiting: deque[_Waiting] = deque()
        self._loader = ThreadPoolExecutor(1, "trtllm_lite adapters")
        self._closed = False

    def submit(self, handle: RequestHandle, lora: LoRARequest) -> None:
        """Start the request when its adapter is there; a failure is an error of the handle.

        Raises ArgumentError if another adapter has the id, OverloadedError if too many requests wait.
        """
        with self._lock:
            known = [entry.lora for entry in self._entries.values()] + [waiting.lora for waiting in self._waiting]
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
            self._waiting.append(_Waiting(weakref.ref(handle), lora, time.monotonic()))
            self._advance()

    def withdraw(self, handle: RequestHandle) -> bool:
        """Forget a request that waits; False if it does not."""
        with self._lock:
            kept = [waiting for waiting in self._waiting if waiting.handle() is not handle]
            found = len(kept) < len(self._waiting)
            self._waiting = deque(kept)
            if found:
                self._advance()
            return found

    def loaded(self) -> tuple[str, ...]:
        """Names of the adapters in memory, the least recently used first."""
        with self._lock:
            return tuple(entry.lora.lora_name for entry in self._entries.values() if entry.adapter is not None)

    def close(self) -> None:
        """Forget what waits, and load nothing any more."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, deque()
        self._loader.shutdown(wait=False, cancel_futures=True)
        for one in waiting:
            _fail(one, EngineError("this model was shut down and takes no more requests: load it again"))

    def _advance(self) -> None:
        """Start what can start, in order of arrival, and load what is missing. The lock is held."""
        blocked, wanted = False, set[int]()
        for waiting in list(self._waiting):
            handle = waiting.handle()
            if handle is None:
                self._waiting.remove(waiting)
                continue
            lora_id = waiting.lora.lora_int_id
            entry = self._entries.get(lora_id)
            if entry is None:
                blocked = blocked or not self._begin_loading(waiting.lora, wanted)
            elif entry.adapter is not None and not entry.is_moving:
                if blocked or not self._has_slot(entry):
                    blocked = True
                elif self._place is not None and entry.slot is None:
                    self._begin_placing(entry)
                else:
                    self._waiting.remove(waiting)
                    self._run(handle, waiting, entry)
            wanted.add(lora_id)

    def _has_slot(self, entry: _Entry) -> bool:
        return entry.is_in_use or sum(e.is_in_use for e in self._entries.values()) < self._max_loras

    def _begin_loading(self, lora: LoRARequest, wanted: set[int]) -> bool:
        """Load an adapter, in the place of one that neither runs nor is ``wanted``; False if there is no room."""
        if len(self._entries) >= self._max_cpu_loras:
            idle = (i for i, e in self._entries.items() if e.adapter is not None and not e.is_in_use)
            unused = next((i for i in idle if i not in wanted), None)
            if unused is None:
                return False
            del self._entries[unused]
        self._entries[lora.lora_int_id] = _Entry(lora)
        self._loader.submit(self._load_one, lora)
        return True

    def _load_one(self, lora: LoRARequest) -> None:
        adapter, error = _tried(lambda: self._load(lora), "loading")
        with self._lock:
            if error is None:
                self._entries[lora.lora_int_id].adapter = adapter
            else:
                self._drop(lora, error)
            self._advance()

    def _begin_placing(self, entry: _Entry) -> None:
        """Give the adapter a free slot of the device, or that of the adapter which was unused for longest."""
        taken = {e.slot: e for e in self._entries.values() if e.slot is not None}
        slot = next((slot for slot in range(self._max_loras) if slot not in taken), None)
        if slot is None:
            slot, unused = next((slot, e) for slot, e in taken.items() if not e.is_in_use)
            unused.slot = None
        entry.slot, entry.is_moving = slot, True
        self._loader.submit(self._place_one, entry, slot)

    def _place_one(self, entry: _Entry, slot: int) -> None:
        assert self._place is not None
        place = self._place
        _, error = _tried(lambda: place(entry.adapter, slot), "placing")
        with self._lock:
            entry.is_moving = False
            if error is not None:
                self._drop(entry.lora, error)
            self._advance()

    def _drop(self, lora: LoRARequest, error: TrtllmLiteError) -> None:
        """Forget an adapter, and fail the requests that wait for it."""
        del self._entries[lora.lora_int_id]
        failed = [waiting for waiting in self._waiting if waiting.lora == lora]
        self._waiting = deque(waiting for waiting in self._waiting if waiting.lora != lora)
        for waiting in failed:
            _fail(waiting, error)

    def _run(self, handle: RequestHandle, waiting: _Waiting, entry: _Entry) -> None:
        lora_id = entry.lora.lora_int_id
        entry.num_running += 1
        self._entries[lora_id] = self._entries.pop(lora_id)  # the most recently used
        try:
            self._start(handle, entry.adapter, time.monotonic() - waiting.since, lambda: self._ended(entry))
        except TrtllmLiteError as error:
            entry.num_running -= 1
            _fail(waiting, error)

    def _ended(self, entry: _Entry) -> None:
        with self._lock:
            entry.num_running -= 1
            self._advance()


def _tried(work: Callable[[], Any], what: str) -> tuple[Any, TrtllmLiteError | None]:
    """What ``work`` returns, or the error that requests which wait for it get."""
    try:
        return work(), None
    except TrtllmLiteError as failure:
        return None, failure
    except Exception as failure:  # noqa: BLE001 - the requests must end
        return None, EngineError(f"{what} the adapter failed: {one_line(repr(failure))}")


def _fail(waiting: _Waiting, error: TrtllmLiteError) -> None:
    handle = waiting.handle()
    if handle is not None:
        with handle.notifier:
            handle.fail(error)
            handle.notifier.notify()
