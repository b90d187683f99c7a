"""What reaches the processes of stages."""

from typing import Any, Protocol


class StageFailed(Exception):  # noqa: N818 (it is a verdict, which the caller turns into one of our errors)
    """A call failed in its stage, or the stage's process is gone; the text follows the stage's name."""


class StageProcesses(Protocol):
    """Processes that have a :class:`GpuStage` each: stage 0 and those behind it, but the last."""

    def call(self, stage: int, method: str, *arguments: Any) -> Any:
        """Call a method of a stage, behind the calls before; arrays may change then. Returns a name for its result."""

    def call_beside(self, stage: int, method: str, *arguments: Any) -> Any:
        """The same without waiting for other calls, in a thread of its own."""

    def is_done(self, call: Any) -> bool:
        """Whether :meth:`result` would return, or raise, at once."""

    def result(self, call: Any, seconds: float) -> Any:
        """What a call returned. Raises StageFailed, and TimeoutError after so many seconds."""

    def node_of(self, stage: int) -> str:
        """The node that a stage is on, for people."""

    def close(self) -> None:
        """End all processes; closing twice is fine."""
