"""Defines the interface to the processes of stages."""

from typing import Any, Protocol


class StageFailed(Exception):  # noqa: N818 (it is a verdict, which the caller turns into one of our errors)
    """A call failed in its stage, or the stage's process is gone; the text continues a sentence about the stage."""


class StageProcesses(Protocol):
    """Processes that each run a :class:`GpuStage`: all stages but the last, from stage 0 on."""

    def call(self, stage: int, method: str, *arguments: Any) -> Any:
        """Call a method of a stage after earlier calls; returns a reference to its result. Arrays are copied."""

    def call_beside(self, stage: int, method: str, *arguments: Any) -> Any:
        """Call a method in a thread of its own, without waiting for other calls."""

    def is_done(self, call: Any) -> bool:
        """Whether :meth:`result` would return or raise at once."""

    def result(self, call: Any, seconds: float) -> Any:
        """The result of a call. Raises StageFailed, and TimeoutError after ``seconds``."""

    def node_of(self, stage: int) -> str:
        """The name of a stage's node, for people."""

    def close(self) -> None:
        """End all processes; closing twice is fine."""
