"""Handles failures of stages in other processes: all later steps raise an error that names the failed stage."""

import weakref
from collections.abc import Callable
from typing import NoReturn

from trtllm_lite.errors import DeviceError


class StagesElsewhere:
    """Stages of an engine in other processes: its first stages, or all of them.

    ``nodes`` are the names of their nodes, for people; ``failure`` is the reason why no step can run any more, or None.
    """

    def __init__(self, num_stages: int, num_elsewhere: int, release: Callable[[], None]) -> None:
        """``release`` ends the processes."""
        self.num_stages = num_stages
        self.nodes = ["unknown"] * num_elsewhere
        self.failure: str | None = None
        self.close = weakref.finalize(self, release)

    def _fail(self, stage: int, why: str, what: str) -> NoReturn:
        place = f"stage {stage} of {self.num_stages}, on node {self.nodes[stage]}"
        self.failure = f"{place}, {why} ({what}): load the engine again"
        self.close()
        raise DeviceError(self.failure)

    def _check(self) -> None:
        if self.failure is not None:
            raise DeviceError(self.failure)
        if not self.close.alive:
            raise DeviceError("the engine's stages have been closed: load the engine again")
