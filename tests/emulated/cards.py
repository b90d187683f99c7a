"""Several emulated GPUs, whose launches run side by side."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.emulated.emulator import EmulatedLaunch, Emulator


class EmulatedCards(Emulator):
    """A :class:`tests.gpu.cards.Cards` that queues launches until :meth:`synchronize` runs them.

    Each of its cards runs ``num_sms`` blocks at the same time.
    """

    def __init__(self, count: int, num_sms: int = 3, seed: int = 0) -> None:
        super().__init__(num_sms=num_sms, seed=seed)
        self.count, self._number = count, 0
        self._streams: list[list[EmulatedLaunch]] = [[] for _ in range(count)]

    @contextmanager
    def on(self, number: int) -> Iterator[None]:
        before, self._number = self._number, number
        try:
            yield
        finally:
            self._number = before

    def launch(self, launch: EmulatedLaunch) -> None:
        self._streams[self._number].append(launch)

    def synchronize(self) -> None:
        streams, self._streams = self._streams, [[] for _ in range(self.count)]
        if any(streams):
            self.run(streams)
