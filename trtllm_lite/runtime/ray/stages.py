"""Drives stages in actors: begins steps, and waits for their logits."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayError

from trtllm_lite.engine.manifest import RankMapping
from trtllm_lite.runtime import interfaces
from trtllm_lite.runtime.ray.placement import Placement, Takes, connect, default_num_threads, reason_of
from trtllm_lite.runtime.ray.stage import Facts, Stage
from trtllm_lite.runtime.remote.engine_files import stages_of
from trtllm_lite.runtime.remote.stages import StagesElsewhere

STEP_SECONDS = 30.0  # allowed for each stage of a step
LOADING_SECONDS = 1800.0


@dataclass(frozen=True)
class _Step:
    number: int
    made: Sequence[Any]  # references to the result of each stage


class Stages(StagesElsewhere, interfaces.Stages):
    """The stages of an engine, as ``_core.RemoteStages`` drives them.

    The result of a stage goes from its node directly to the node of the next stage. A stage that fails, ends, or takes
    longer than ``STEP_SECONDS`` fails all steps for good.
    """

    def __init__(self, files: Sequence[Path], mapping: RankMapping, num_blocks: int, num_threads: int | None) -> None:
        """Start the stages; ``files`` are the engines of all ranks, which have to be equal on all nodes.

        Raises DeviceError if the cluster has too few CPUs, or a stage does not load.
        """
        connect()
        self.num_blocks = num_blocks
        num_threads = num_threads or default_num_threads(mapping.pp_size)
        arguments = [(digests, num_blocks, num_threads) for digests in stages_of(files, mapping)]
        self._placement = Placement(Stage, arguments, Takes("CPU", num_threads, "add nodes, or lower num_threads"))
        super().__init__(mapping.pp_size, mapping.pp_size, self._placement.release)
        self._begun: deque[_Step] = deque()
        self._num_begun = 0
        self._copies: list[tuple[int, int]] = []  # copies to make before the next step
        facts = self._load()
        self.block_bytes = sum(self._block_bytes)
        names = ("weights", "kv_cache", "workspace")
        self.memory = {name: sum(stage.memory[name] for stage in facts) for name in names}
        self.pids = [stage.pid for stage in facts]

    def begin(self, *request: NDArray[np.int32]) -> None:
        """Begin a step; the arrays are those of ``_core.step_stage``."""
        self._check()
        copies, self._copies = self._copies, []
        made: list[Any] = []
        for actor in self._placement.actors:
            made.append(actor.step.remote(copies, request, *made[-1:]))
        self._begun.append(_Step(self._num_begun, made))
        self._num_begun += 1

    def finish(self) -> NDArray[np.float32]:
        """Return the logits of the oldest step that was begun. Raises DeviceError."""
        step = self._begun.popleft()
        self._check()
        logits: NDArray[np.float32] = self._get(step.made[-1:], step.made, f"step {step.number}", STEP_SECONDS)[0]
        return logits

    def copy_block(self, source: int, to: int) -> None:
        """Copy a block of the KV cache, before the next step and after the steps that have begun."""
        self._copies.append((source, to))

    def save_block(self, block: int, out: NDArray[np.uint8]) -> None:
        """Write a block of the KV cache, stage by stage, to ``out``."""
        parts = self._call("save_block", [(block,)] * self.num_stages)
        np.concatenate(parts, out=out)

    def load_block(self, block: int, data: NDArray[np.uint8]) -> None:
        """Read a block of the KV cache, stage by stage, from ``data``."""
        parts = np.split(data, np.cumsum(self._block_bytes)[:-1])
        self._call("load_block", [(block, part) for part in parts])

    def _load(self) -> list[Facts]:
        self.nodes = [self._placement.node_of(stage) for stage in range(self.num_stages)]
        refs = [actor.facts.remote() for actor in self._placement.actors]
        facts: list[Facts] = self._get(refs, refs, "loading", LOADING_SECONDS)
        self._block_bytes = [stage.block_bytes for stage in facts]
        return facts

    def _call(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        self._check()
        copies, self._copies = self._copies, []
        refs = [
            getattr(actor, method).remote(copies, *own)
            for actor, own in zip(self._placement.actors, arguments, strict=True)
        ]
        return self._get(refs, refs, method, STEP_SECONDS)

    def _get(self, wanted: Sequence[Any], made: Sequence[Any], what: str, seconds: float) -> list[Any]:
        """Get the objects ``wanted``, which are among the stages' results ``made``; wait ``seconds`` for each."""
        num_made = 0
        while len(ray.wait(list(wanted), num_returns=len(wanted), timeout=seconds)[0]) < len(wanted):
            num_before, num_made = num_made, _num_ready(made)
            if num_made == num_before:
                self._fail(_first_unready(made), f"is not done after {seconds:.0f} s", what)
        try:
            return list(ray.get(list(wanted)))
        except RayError:
            self._fail(*_first_failed(made), what)


def _num_ready(refs: Sequence[Any]) -> int:
    return len(ray.wait(list(refs), num_returns=len(refs), timeout=0, fetch_local=False)[0])


def _first_unready(refs: Sequence[Any]) -> int:
    return next(stage for stage, ref in enumerate(refs) if _num_ready([ref]) == 0)


def _first_failed(refs: Sequence[Any]) -> tuple[int, str]:
    """The stage that failed first, and why; later stages failed because they had no input."""
    for stage, ref in enumerate(refs):
        try:
            ray.get(ref, timeout=1)
        except RayError as error:
            return stage, reason_of(error)
    return len(refs) - 1, "has lost its result"
