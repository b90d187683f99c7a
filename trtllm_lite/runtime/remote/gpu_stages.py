"""Drives all earlier stages of a pipeline from the process of the last stage."""

import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from threading import Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.common.files import library_directories
from trtllm_lite.common.printable import one_line
from trtllm_lite.engine.manifest import RankMapping
from trtllm_lite.errors import DeviceError
from trtllm_lite.runtime.core import core
from trtllm_lite.runtime.interfaces import EarlierStages
from trtllm_lite.runtime.remote.gpu_stage import Facts, Shape
from trtllm_lite.runtime.remote.processes import StageFailed, StageProcesses
from trtllm_lite.runtime.remote.stages import StagesElsewhere

RANK_SECONDS = 30.0  # longest wait of a rank for the others at a collective; a step may take twice as long
LOADING_SECONDS = 1800.0
CONNECTING_SECONDS = 120.0
_ANSWERING_SECONDS = 5.0  # time limit of calls that return at once


class GpuStages(StagesElsewhere, EarlierStages):
    """The stages of an engine except the last, as ``_core.LastStage`` drives them.

    A stage that fails, ends, or does not end a step in time fails all steps for good.
    """

    def __init__(self, processes: StageProcesses, mapping: RankMapping) -> None:
        """``processes`` run all stages of the engine except the last."""
        super().__init__(mapping.pp_size, mapping.pp_size - 1, processes.close)
        self._num_ranks = mapping.num_ranks
        self._processes = processes
        self.rank_seconds = RANK_SECONDS
        self.memory = dict.fromkeys(("weights", "kv_cache", "workspace"), 0)
        self.pids: list[int] = []
        self._watches: list[Any] = []
        self._loading: list[Any] = []

    def free_memory(self) -> list[int]:
        """Free bytes of the GPU of each rank. Raises DeviceError."""
        free = self._results(self._call_all("free_memory"), "loading", LOADING_SECONDS)
        self.nodes = [self._processes.node_of(stage) for stage in range(self.num_stages - 1)]
        return [num_bytes for of_stage in free for num_bytes in of_stage]

    def check_apart(self, gpus: Sequence[str]) -> None:
        """Raise DeviceError if another stage has one of ``gpus``, the GPUs of the last stage (see ``named_gpus``)."""
        for stage, own in enumerate(self._results(self._call_all("gpus"), "loading", LOADING_SECONDS)):
            shared = sorted({*gpus} & {*own})
            if shared:
                raise DeviceError(
                    f"stage {stage} of {self.num_stages} was placed on GPU {shared[0]}, which the last stage takes: "
                    "leave that one out where Ray is started on this machine (CUDA_VISIBLE_DEVICES, or --num-gpus 0)"
                )

    def load(self, num_blocks: int, num_host_blocks: int) -> None:
        """Begin to load the engines in all stages."""
        self._loading = self._call_all("load", num_blocks, num_host_blocks, self.rank_seconds)

    def connect(self, last: Any, engine: Any) -> None:
        """Wait until the engines are loaded, and connect all stages. Raises DeviceError."""
        facts: list[Facts] = self._results(self._loading, "loading", LOADING_SECONDS)
        self.memory = {name: sum(stage.memory[name] for stage in facts) for name in self.memory}
        self.pids = [stage.pid for stage in facts]
        directories = library_directories()
        ids = core().nccl_ids(self._num_ranks, directories)
        calls = self._call_all("connect", ids)
        own = _in_thread(lambda: last.connect(engine, ids, directories))
        end = time.monotonic() + CONNECTING_SECONDS
        while not own.done() or not all(map(self._processes.is_done, calls)):
            if own.done():
                own.result()
            is_late = time.monotonic() > end
            for stage, call in enumerate(calls):
                if self._processes.is_done(call):
                    self._result(stage, call, "connecting", 0)
                elif is_late:
                    self._fail(stage, f"is not connected after {CONNECTING_SECONDS:.0f} s", "connecting")
            if is_late:
                raise DeviceError(f"the last stage is not connected after {CONNECTING_SECONDS:.0f} s: load it again")
            wait([own], timeout=0.05)
        own.result()
        self._results(calls, "connecting", 0)
        self._watches = [self._processes.call_beside(stage, "watch") for stage in range(self.num_stages - 1)]

    def step(self, number: int, copies: NDArray[np.int32], shape: Shape, inputs: NDArray[np.uint8]) -> None:
        """Pass a step to the stages."""
        self._check()
        self._call_all("step", number, copies, shape, inputs)

    def capture(self, shape: Shape, inputs: NDArray[np.uint8]) -> None:
        """Have all stages capture the CUDA graph of a step of ``shape``."""
        self._check()
        self._results(self._call_all("capture", shape, inputs), "capturing a step", LOADING_SECONDS)

    def check(self, step: int) -> None:
        """Raise DeviceError if a stage has failed."""
        self._check()
        for stage, watch in enumerate(self._watches):
            if self._processes.is_done(watch):
                self._result(stage, watch, f"step {step}", 0)
                self._fail(stage, "has ended", f"step {step}")

    def check_ended(self, step: int) -> None:
        """Raise DeviceError if a stage has not ended a step in time."""
        self.check(step)
        asked = [self._processes.call_beside(stage, "has_ended", step) for stage in range(self.num_stages - 1)]
        for stage, call in enumerate(asked):
            try:
                has_ended = self._processes.result(call, _ANSWERING_SECONDS)
            except (TimeoutError, StageFailed):
                has_ended = False
            if not has_ended:
                self._fail(stage, f"is not done after {2 * self.rank_seconds:.0f} s", f"step {step}")

    def fail(self, why: str) -> None:
        """Fail all further steps, because the last stage has failed."""
        if self.failure is None:
            self.failure = f"the last stage of {self.num_stages} failed: {one_line(why)}: load the engine again"
        self.close()

    def _call_all(self, method: str, *arguments: Any) -> list[Any]:
        return [self._processes.call(stage, method, *arguments) for stage in range(self.num_stages - 1)]

    def _results(self, calls: Sequence[Any], what: str, seconds: float) -> list[Any]:
        return [self._result(stage, call, what, seconds) for stage, call in enumerate(calls)]

    def _result(self, stage: int, call: Any, what: str, seconds: float) -> Any:
        try:
            return self._processes.result(call, seconds)
        except TimeoutError:
            self._fail(stage, f"is not done after {seconds:.0f} s", what)
        except StageFailed as failed:
            self._fail(stage, str(failed), what)


def _in_thread(function: Any) -> Future[None]:
    """Run ``function`` in a daemon thread, as it may wait forever, and return its future."""
    future: Future[None] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 (the future raises it)
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future
