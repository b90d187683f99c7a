"""Which adapters are kept, and which requests run: checked after every event of random loads."""

import gc
import random
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from trtllm_lite.errors import ArgumentError, EngineError, OverloadedError
from trtllm_lite.runtime.lora import adapters as module
from trtllm_lite.runtime.lora.adapters import Adapters
from trtllm_lite.runtime.lora.request import LoRARequest
from trtllm_lite.runtime.session.request import FinishReason


class Timer:
    """Stands for threading.Timer; a test fires it."""

    def __init__(self, seconds: float, call) -> None:
        self.seconds, self.fire, self.daemon, self.cancelled = seconds, call, False, False

    def start(self) -> None: ...

    def cancel(self) -> None:
        self.cancelled = True


class Loader:
    """A ThreadPoolExecutor whose calls run when the test calls ``run_one``."""

    def __init__(self, *_) -> None:
        self.calls: list = []

    def submit(self, function, *arguments) -> Future:
        self.calls.append((function, arguments))
        return Future()

    def run_one(self) -> None:
        function, arguments = self.calls.pop(0)
        function(*arguments)

    def shutdown(self, **_) -> None:
        self.calls.clear()


@dataclass(eq=False)
class Handle:
    """Stands for RequestHandle; keeps the request's adapter, and the error or reason with which it ended."""

    lora: LoRARequest
    timeout: float | None = None
    error: Exception | None = None
    ended: str | None = None

    def __post_init__(self) -> None:
        self.told: list = []
        self.request = SimpleNamespace(timeout=self.timeout, tell_unstarted=self.told.append)

    def end_with(self, error) -> None:
        self.error = error

    def end_unstarted(self, reason) -> None:
        self.ended = reason


@dataclass
class World:
    """A manager over stand-ins; ``running`` has what each running request calls at its end.

    With ``has_slots`` the device has memory of its own, and ``slots`` says which adapter is in which slot.
    """

    max_loras: int
    max_cpu_loras: int
    running: dict = field(default_factory=dict)
    loads: list = field(default_factory=list)
    broken: set = field(default_factory=set)
    has_slots: bool = False
    slots: dict = field(default_factory=dict)
    released: int = 0
    spare: int = 0
    cache_is_full: bool = False

    def __post_init__(self) -> None:
        slots = self if self.has_slots else None
        self.manager = Adapters(self._load, self._start, self.max_loras, self.max_cpu_loras, slots)

    @property
    def loader(self) -> Loader:
        return self.manager._loader

    def submit(self, number: int, timeout: float | None = None) -> Handle:
        handle = Handle(lora(number), timeout)
        self.manager.submit(handle, handle.lora)
        return handle

    def load_all(self) -> None:
        while self.loader.calls:
            self.loader.run_one()

    def end(self, handle: Handle) -> None:
        self.running.pop(handle)[1]()

    def check(self) -> None:
        used = {handle.lora.lora_name for handle in self.running}
        assert len(used) <= self.max_loras
        assert used <= set(self.manager.loaded())
        assert len(self.manager._entries) <= self.max_cpu_loras
        assert not self.has_slots or {f"adapter {name}" for name in used} <= set(self.slots.values())

    def empty(self, slot: int) -> None:
        assert self.slots[slot] not in [running for running, _ in self.running.values()]
        del self.slots[slot]
        self.spare += 1

    def release(self, slot: int) -> bool:
        """Empty a slot; memory comes back with every second one, or none is lent any more."""
        self.empty(slot)
        self.released += 1
        return self.released % 2 == 0 or not self.slots

    def must_wait(self, slot: int) -> bool:
        return self.cache_is_full and slot not in self.slots and self.spare == 0

    def place(self, adapter: str, slot: int) -> None:
        assert 0 <= slot < self.max_loras
        assert self.slots.get(slot) not in [running for running, _ in self.running.values()]
        if adapter.removeprefix("adapter ") in self.broken:
            raise EngineError("no room for the adapter")
        self.slots[slot] = adapter
        self.spare = max(self.spare - 1, 0)

    def _load(self, wanted: LoRARequest) -> str:
        self.loads.append(wanted.lora_name)
        if wanted.lora_name in self.broken:
            raise EngineError("no such adapter")
        return f"adapter {wanted.lora_name}"

    def _start(self, handle, adapter, waited, ended) -> None:
        assert adapter == f"adapter {handle.lora.lora_name}"
        assert waited >= 0
        self.running[handle] = (adapter, ended)


@pytest.fixture(autouse=True)
def loader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ThreadPoolExecutor", Loader)
    monkeypatch.setattr(module.threading, "Timer", Timer)


def lora(number: int) -> LoRARequest:
    return LoRARequest(str(number), number, f"/adapters/{number}")


def test_the_least_recently_used_adapter_makes_room() -> None:
    world = World(max_loras=1, max_cpu_loras=2)
    for number in (1, 2, 1, 3):
        handle = world.submit(number)
        world.load_all()
        world.end(handle)
    assert world.manager.loaded() == ("1", "3")
    assert world.loads == ["1", "2", "3"]


def test_adapters_in_use_stay_and_requests_wait_for_room() -> None:
    world = World(max_loras=2, max_cpu_loras=2)
    first, second = world.submit(1), world.submit(2)
    world.load_all()
    third, again = world.submit(3), world.submit(1)
    world.load_all()
    assert set(world.running) == {first, second}  # no request overtakes the one that waits for room
    assert world.manager.loaded() == ("1", "2")
    assert world.manager.in_use() == (["1", "2"], ["3", "1"])
    world.end(second)
    world.load_all()
    assert set(world.running) == {first, third, again}
    assert world.manager.loaded() == ("1", "3")


def test_a_request_does_not_wait_for_another_ones_loading() -> None:
    world = World(max_loras=2, max_cpu_loras=3)
    first = world.submit(1)
    world.load_all()
    slow, quick = world.submit(2), world.submit(1)
    assert set(world.running) == {first, quick}
    world.load_all()
    assert slow in world.running


def test_a_failure_is_that_of_the_requests_which_want_the_adapter_and_is_tried_again() -> None:
    world = World(max_loras=1, max_cpu_loras=1, broken={"1"})
    failing, fine = world.submit(1), world.submit(2)
    world.load_all()
    assert isinstance(failing.error, EngineError)
    assert fine.error is None
    assert fine in world.running
    world.end(fine)
    world.broken.clear()
    later = world.submit(1)
    world.load_all()
    assert later in world.running


def test_the_end_of_a_request_that_nobody_holds_while_it_waits_is_told() -> None:
    world = World(max_loras=1, max_cpu_loras=1)
    first, dropped = world.submit(1), world.submit(2)
    world.load_all()
    told = dropped.told
    del dropped
    world.end(first)
    world.load_all()
    assert told == [FinishReason.CANCELLED]
    assert first.told == []


def test_one_id_belongs_to_one_adapter() -> None:
    world = World(max_loras=1, max_cpu_loras=1)
    handle = world.submit(1)
    with pytest.raises(ArgumentError, match="lora_int_id 1"):
        world.manager.submit(handle, LoRARequest("other", 1, "/adapters/other"))


def test_waiting_requests_are_bounded_and_end_with_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 2)
    world = World(max_loras=1, max_cpu_loras=1)
    handles = [world.submit(1), world.submit(2)]
    with pytest.raises(OverloadedError, match="fewer than 2"):
        world.submit(1)
    world.manager.close()
    assert all("shut down" in str(handle.error) for handle in handles)


def test_an_adapter_in_memory_is_placed_again_when_another_took_its_slot() -> None:
    world = World(max_loras=1, max_cpu_loras=2, has_slots=True)
    for number in (1, 2, 1):
        handle = world.submit(number)
        world.load_all()
        assert world.slots == {0: f"adapter {number}"}
        world.end(handle)
    assert world.loads == ["1", "2"]


def test_a_request_does_not_wait_for_another_ones_placing() -> None:
    world = World(max_loras=2, max_cpu_loras=3, has_slots=True)
    first = world.submit(1)
    world.load_all()
    slow = world.submit(2)
    world.loader.run_one()  # the adapter is loaded, and on its way to the device
    quick = world.submit(1)
    assert set(world.running) == {first, quick}
    world.load_all()
    assert slow in world.running
    assert sorted(world.slots) == [0, 1]


def test_the_slot_of_the_adapter_that_was_unused_for_longest_is_taken() -> None:
    world = World(max_loras=2, max_cpu_loras=3, has_slots=True)
    for number in (1, 2, 1, 3):
        handle = world.submit(number)
        world.load_all()
        world.end(handle)
    assert set(world.slots.values()) == {"adapter 1", "adapter 3"}


def test_a_failure_to_place_is_that_of_the_requests_which_want_the_adapter() -> None:
    world = World(max_loras=1, max_cpu_loras=2, has_slots=True)
    failing = world.submit(1)
    world.loader.run_one()
    world.broken.add("1")
    fine = world.submit(2)
    world.load_all()
    assert "no room" in str(failing.error)
    assert fine in world.running


def test_slots_give_memory_back_when_their_adapters_are_not_in_use() -> None:
    world = World(max_loras=3, max_cpu_loras=3, has_slots=True)
    handles = [world.submit(number) for number in (1, 2, 3)]
    world.load_all()
    world.manager.make_room()
    assert not world.loader.calls  # all are in use
    world.end(handles[1])
    world.end(handles[0])
    world.load_all()
    assert set(world.slots.values()) == {"adapter 3"}  # only the second slot gave memory
    world.end(handles[2])
    assert not world.loader.calls
    world.manager.make_room()
    last = world.submit(3)  # its slot is on the way out, and it is placed again
    world.load_all()
    assert set(world.slots.values()) == {"adapter 3"}
    assert world.released == 3
    assert world.loads == ["1", "2", "3"]
    world.end(last)
    world.load_all()
    assert set(world.slots.values()) == {"adapter 3"}  # the cache has all memory, and wants none


def test_an_idle_adapter_makes_room_before_requests_have_to() -> None:
    world = World(max_loras=4, max_cpu_loras=4, has_slots=True)
    handles = [world.submit(number) for number in (1, 2)]
    world.load_all()
    world.end(handles[0])
    handles.append(world.submit(3))
    world.load_all()
    assert set(world.slots.values()) == {"adapter 1", "adapter 2", "adapter 3"}
    world.cache_is_full = True
    handles.append(world.submit(4))
    world.load_all()
    assert set(world.slots.values()) == {"adapter 2", "adapter 3", "adapter 4"}


def test_the_slot_of_an_adapter_that_is_no_longer_in_memory_is_emptied_first() -> None:
    world = World(max_loras=2, max_cpu_loras=2, has_slots=True)
    for number in (1, 2):
        handle = world.submit(number)
        world.load_all()
        world.end(handle)
    world.broken.add("3")
    world.submit(3)  # takes the place of adapter 1 in memory, and fails
    world.load_all()
    world.manager.make_room()
    world.loader.run_one()
    assert world.slots == {1: "adapter 2"}


@pytest.mark.parametrize("has_slots", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_random_loads_keep_the_bounds_and_come_to_an_end(seed: int, has_slots: bool) -> None:
    choose = random.Random(seed)
    max_loras = choose.randint(1, 3)
    world = World(max_loras, max_loras + choose.randint(0, 2), broken={"4"}, has_slots=has_slots)
    handles: list[Handle] = []
    for _ in range(300):
        match choose.choice(("submit", "submit", "load", "end", "withdraw", "drop", "make room")):
            case "submit":
                handles.append(world.submit(choose.randint(1, 7)))
            case "load" if world.loader.calls:
                world.loader.run_one()
            case "end" if world.running:
                world.end(choose.choice(list(world.running)))
            case "withdraw" if handles:
                handle = choose.choice(handles)
                waits = handle not in world.running and handle.error is None
                if world.manager.withdraw(handle):
                    assert waits
                    handles.remove(handle)
            case "make room":
                world.manager.make_room()
            case "drop" if handles:
                handles.remove(choose.choice(handles))
        world.check()
    gc.collect()
    while world.running or world.loader.calls:
        world.load_all()
        for handle in list(world.running):
            world.end(handle)
        world.check()
    assert not any(waiting.handle() for waiting in world.manager._waiting)


def test_a_request_waits_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    world = World(max_loras=1, max_cpu_loras=2)
    world.submit(1)
    world.load_all()
    patient, hasty, hastier = world.submit(2), world.submit(2, timeout=5.0), world.submit(2, timeout=3.0)
    assert world.manager._timer.seconds == 3.0
    now[0] += 3
    world.manager._timer.fire()
    assert (hastier.ended, hasty.ended, patient.ended) == ("TIMED_OUT", None, None)
    assert world.manager._timer.seconds == 2.0
    now[0] += 2
    world.manager._timer.fire()
    assert (hasty.ended, patient.ended) == ("TIMED_OUT", None)
    assert world.manager._timer.cancelled  # no request with a timeout waits


def test_an_unforeseen_error_ends_whoever_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(max_loras=1, max_cpu_loras=2)
    first, second = world.submit(1), world.submit(2)

    def advance() -> None:
        raise TypeError("no such thing")

    monkeypatch.setattr(world.manager, "_advance", advance)
    world.loader.run_one()
    for handle in (first, second):
        assert "the thread that loads adapters failed (TypeError" in str(handle.error)
    with pytest.raises(OverloadedError):
        world.submit(3)
