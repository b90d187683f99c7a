"""Places adapters into slots of a GPU, with memory that the KV cache lends."""

from typing import Any


class SlotMemory:
    """The slots for adapters of ``executor``, whose KV cache an event loop ``loop`` uses (both of ``_core``).

    A slot has memory of its own, or memory of the KV cache: slabs of 32 MiB, which the loop gives when no step reaches
    their blocks any more. One thread at a time calls the methods; requests go on meanwhile.
    """

    def __init__(self, executor: Any, loop: Any) -> None:
        self._executor, self._loop = executor, loop

    def must_wait(self, slot: int) -> bool:
        """Whether :meth:`place` would wait for requests to end, because the KV cache is full."""
        missing = self._executor.num_missing_slabs(slot)
        return missing > 0 and missing > self._loop.stats()["num_spare_slabs"]

    def place(self, adapter: Any, slot: int) -> None:
        """Copy ``adapter`` (``_core.Adapter``) into a slot that no request uses.

        Waits for memory of the KV cache if that is short. Raises LimitError, DeviceError; then the slot is empty.
        """
        missing = self._executor.num_missing_slabs(slot)
        slabs = self._loop.lend_slabs(missing) if missing else []
        try:
            if slabs:
                self._executor.give_to_adapters(slabs)
            self._executor.place_adapter(adapter, slot=slot)
        except BaseException:
            self.release(slot)
            raise

    def empty(self, slot: int) -> None:
        """Make the memory of a slot that no request uses ready for other slots. Raises DeviceError."""
        self._executor.empty_adapter_slot(slot)

    def release(self, slot: int) -> bool:
        """Empty a slot that no request uses; False if the KV cache got none of the memory that it lacks.

        Raises DeviceError.
        """
        self._executor.empty_adapter_slot(slot)
        slabs = self._executor.take_from_adapters()
        if slabs:
            self._loop.return_slabs(slabs)
        return bool(slabs) or self._executor.num_lent_slabs == 0
