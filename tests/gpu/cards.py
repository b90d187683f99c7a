"""Several GPUs as one machine: kernels of all GPUs run at the same time, and wait for each other."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch

from tests.gpu.device import Gpu, Machine


class Cards(Machine, Protocol):
    """A machine of ``count`` cards that can reach each other's memory."""

    @property
    def count(self) -> int: ...
    def on(self, number: int) -> AbstractContextManager[None]:
        """Make, load and launch everything in the block on that card; launches go to the card's own stream."""
        ...

    def synchronize(self) -> None:
        """Return when all launches have ended."""
        ...


class Gpus(Gpu):
    """This machine's GPUs."""

    def __init__(self) -> None:
        self.streams = [torch.cuda.Stream(number) for number in range(torch.cuda.device_count())]

    @property
    def count(self) -> int:
        return len(self.streams)

    @contextmanager
    def on(self, number: int) -> Iterator[None]:
        with torch.cuda.device(number), torch.cuda.stream(self.streams[number]):
            yield

    def synchronize(self) -> None:
        for number in range(self.count):
            torch.cuda.synchronize(number)
