"""Runs stages on GPUs as Ray actors."""

from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from trtllm_lite.runtime.ray.placement import Placement, Takes, connect, reason_of
from trtllm_lite.runtime.remote.engine_files import Digests
from trtllm_lite.runtime.remote.gpu_stage import GpuStage
from trtllm_lite.runtime.remote.processes import StageFailed

_BESIDE = "beside"  # concurrency group of call_beside, with a thread for watch and a thread for has_ended
_NUM_BESIDE = 2
_REMEDY = (
    "add nodes with GPUs (the GPUs of the last stage, which runs in this process, do not count), or build the engine "
    "with fewer stages"
)


class GpuActors:
    """Implements ``StageProcesses``."""

    def __init__(self, stages: Sequence[Digests]) -> None:
        """``stages``: engine files of all stages but the last. Raises DeviceError if the cluster has too few GPUs."""
        connect()
        takes = Takes("GPU", len(stages[0]), _REMEDY)
        arguments = [(digests,) for digests in stages]
        self._placement = Placement(GpuStage, arguments, takes, concurrency_groups={_BESIDE: _NUM_BESIDE})

    def call(self, stage: int, method: str, *arguments: Any) -> Any:
        """See ``StageProcesses``."""
        return getattr(self._placement.actors[stage], method).remote(*arguments)

    def call_beside(self, stage: int, method: str, *arguments: Any) -> Any:
        """See ``StageProcesses``."""
        called = getattr(self._placement.actors[stage], method)
        return called.options(concurrency_group=_BESIDE).remote(*arguments)

    def is_done(self, call: Any) -> bool:
        """See ``StageProcesses``."""
        return len(ray.wait([call], timeout=0, fetch_local=False)[0]) == 1

    def result(self, call: Any, seconds: float) -> Any:
        """See ``StageProcesses``."""
        try:
            return ray.get(call, timeout=max(seconds, 1.0))
        except GetTimeoutError as error:
            raise TimeoutError from error
        except RayError as error:
            raise StageFailed(reason_of(error)) from error

    def node_of(self, stage: int) -> str:
        """See ``StageProcesses``."""
        return self._placement.node_of(stage)

    def close(self) -> None:
        """See ``StageProcesses``."""
        self._placement.release()
