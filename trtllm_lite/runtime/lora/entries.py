"""Keeps the list of adapters in memory, some with a slot on the device, and decides which make room for others."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from trtllm_lite.runtime.lora.request import LoRARequest


@dataclass
class Entry:
    """A loaded adapter, or (``adapter`` is None) one that is being loaded; ``num_running`` requests run it.

    ``slot`` is its place in the device's memory, if any; while ``is_moving``, it is being copied there.
    """

    lora: LoRARequest
    adapter: Any = None
    num_running: int = 0
    slot: int | None = None
    is_moving: bool = False

    @property
    def is_in_use(self) -> bool:
        """Whether the adapter has to stay where it is."""
        return self.num_running > 0 or self.is_moving


class Entries:
    """At most ``max_cpu_loras`` entries, of which at most ``max_loras`` are in use.

    Entries that are not in use make room for others, the least recently used first. The caller holds a lock.
    """

    def __init__(self, max_loras: int, max_cpu_loras: int) -> None:
        self._max_loras, self._max_cpu_loras = max_loras, max_cpu_loras
        self._filled: set[int] = set()  # slots that hold an adapter, also one that was dropped
        self._leaving: set[int] = set()  # slots that are being emptied
        self._by_id: dict[int, Entry] = {}  # in order of use, the least recently used first

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._by_id.values())

    def of(self, lora_id: int) -> Entry | None:
        """The entry of the adapter with this id; None if there is none."""
        return self._by_id.get(lora_id)

    def add(self, entry: Entry, wanted: Collection[int] = ()) -> bool:
        """Add ``entry``, if necessary in place of one whose id is not ``wanted``; False if there is no room."""
        if len(self._by_id) >= self._max_cpu_loras:
            idle = (i for i, one in self._by_id.items() if one.adapter is not None and not one.is_in_use)
            unused = next((i for i in idle if i not in wanted), None)
            if unused is None:
                return False
            del self._by_id[unused]
        self._by_id[entry.lora.lora_int_id] = entry
        return True

    def drop(self, lora: LoRARequest) -> None:
        """Forget an adapter."""
        del self._by_id[lora.lora_int_id]

    def use(self, entry: Entry) -> None:
        """Count one more request that runs ``entry``, which becomes the most recently used."""
        entry.num_running += 1
        self._by_id[entry.lora.lora_int_id] = self._by_id.pop(entry.lora.lora_int_id)

    def may_use(self, entry: Entry) -> bool:
        """Whether using ``entry`` would leave at most ``max_loras`` entries in use."""
        return entry.is_in_use or sum(one.is_in_use for one in self) < self._max_loras

    def take_slot(self, entry: Entry) -> int | None:
        """Give an entry that may be used a free slot of the device, or the slot of an entry that is not in use.

        None if there is none, because a slot is being emptied.
        """
        taken = self._by_slot()
        free = (slot for slot in range(self._max_loras) if slot not in taken and slot not in self._leaving)
        slot = self._first_or_idle(free)
        if slot is not None:
            entry.slot, entry.is_moving = slot, True
            self._filled.add(slot)
        return slot

    def leave_slot(self) -> int | None:
        """Take its slot from an adapter that is not in use, the least recently used; None if there is none.

        Slots of adapters that are no longer in memory come first. The slot is free after :meth:`emptied`.
        """
        taken = self._by_slot()
        slot = self._first_or_idle(slot for slot in sorted(self._filled - self._leaving) if slot not in taken)
        if slot is not None:
            self._leaving.add(slot)
        return slot

    def _first_or_idle(self, slots: Iterator[int]) -> int | None:
        """The first of ``slots``, or a slot whose adapter is not in use and loses it, the least recently used."""
        slot = next(slots, None)
        if slot is not None:
            return slot
        slot, entry = next(((slot, one) for slot, one in self._by_slot().items() if not one.is_in_use), (None, None))
        if entry is not None:
            entry.slot = None
        return slot

    def emptied(self, slot: int) -> None:
        """Note that a slot which was left holds no adapter any more."""
        self._leaving.remove(slot)
        self._filled.discard(slot)

    def _by_slot(self) -> dict[int, Entry]:
        return {one.slot: one for one in self if one.slot is not None}
