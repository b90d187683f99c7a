"""Defines LoadedModel: a loaded engine whose event loop runs requests, whatever the kind of its model."""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trtllm_lite.engine.manifest import Manifest
from trtllm_lite.runtime.session.pump import Pump
from trtllm_lite.runtime.session.stats import Stats
from trtllm_lite.runtime.session.steps import RecordedSteps, StepRecord
from trtllm_lite.runtime.text.tokenizer import Tokenizer


@dataclass(eq=False)
class LoadedModel(ABC):
    """What sessions of decoders and embedders have in common.

    ``executor`` is a ``_core.DeviceExecutor``; ``pump`` delivers what the ``_core.Loop`` over it does; tests replace
    both by stand-ins. The model lives as long as something refers to it or to the handle of one of its requests.
    """

    manifest: Manifest
    limits: Any
    executor: Any
    pump: Pump
    tokenizer: Tokenizer | None

    def __post_init__(self) -> None:
        # This also runs at the interpreter's exit: the pump's thread must end before the objects that it uses.
        self._close = weakref.finalize(self, _call_all, self.closing)

    @property
    @abstractmethod
    def closing(self) -> tuple[Callable[[], None], ...]:
        """The functions to call, in order, when the model is closed; they hold no reference to it."""

    @property
    @abstractmethod
    def is_broken(self) -> bool:
        """Whether nothing can be computed any more until the engine is loaded again."""

    @abstractmethod
    def stats(self) -> Stats:
        """Counts and times of what the model has done so far."""

    def cancel(self, request_id: int) -> None:
        """End a request within a step; a request that has ended already stays as it is."""
        self.pump.loop.cancel(request_id)

    def record_steps(self, most: int) -> None:
        """Record the times and tokens of the next ``most`` steps, and forget those of earlier steps."""
        self.pump.loop.record_steps(most)

    def take_steps(self) -> RecordedSteps:
        """The steps recorded since :meth:`record_steps`; nothing more is recorded."""
        steps, num_left_out = self.pump.loop.take_steps()
        return RecordedSteps([StepRecord(*step) for step in steps], num_left_out)

    def close(self) -> None:
        """Cancel running requests, and end the pump's thread. Nothing can be submitted then; closing twice is fine."""
        self._close()


def _call_all(functions: tuple[Callable[[], None], ...]) -> None:
    for function in functions:
        function()
