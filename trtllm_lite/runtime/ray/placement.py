"""Places stages on the nodes of a Ray cluster, as actors."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from trtllm_lite.common.printable import one_line
from trtllm_lite.errors import DeviceError

PLACING_SECONDS = 30.0  # time for the cluster to find the resources that stages need


def connect() -> None:
    """Join Ray's cluster, or start one on this machine alone if there is none; it stays until the process ends."""
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster that is started here sends no usage reports
    ray.init(log_to_driver=False, logging_level=logging.WARNING)


def default_num_threads(num_stages: int) -> int:
    """Threads of a stage: the CPUs of the smallest node, divided by the stages on a node if spread evenly."""
    nodes = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
    nodes = [int(num_cpus) for num_cpus in nodes if num_cpus >= 1]
    stages_of_node = -(-num_stages // max(len(nodes), 1))
    return max(min(nodes, default=1) // stages_of_node, 1)


@dataclass(frozen=True)
class Takes:
    """How many CPUs or GPUs (``kind``) each stage takes from its node, and the remedy if there are too few."""

    kind: str
    count: int
    remedy: str


class Placement:
    """Actors of stages in one placement group; they are released together."""

    def __init__(self, stage: type, arguments: Sequence[tuple[Any, ...]], takes: Takes, **options: Any) -> None:
        """Start an actor of ``stage`` for each of ``arguments``. Raises DeviceError if resources are missing."""
        self.group = placement_group([{takes.kind: takes.count}] * len(arguments), strategy="PACK")
        self.actors: list[Any] = []
        if not self.group.wait(PLACING_SECONDS):
            self.release()
            raise DeviceError(
                f"{len(arguments)} stages of {takes.count} {takes.kind}s each find no place in the Ray cluster within "
                f"{PLACING_SECONDS:.0f} s: {takes.remedy}"
            )
        options |= {"num_cpus": takes.count} if takes.kind == "CPU" else {"num_cpus": 0, "num_gpus": takes.count}
        made: Any = ray.remote(max_restarts=0, max_task_retries=0, **options)(stage)
        for number, own in enumerate(arguments):
            where = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=number)
            self.actors.append(made.options(scheduling_strategy=where).remote(*own))

    def release(self) -> None:
        """End the actors, and release their resources; releasing twice is fine."""
        if not ray.is_initialized():
            return  # the actors ended with the connection
        for actor in self.actors:
            ray.kill(actor)
        self.actors = []
        remove_placement_group(self.group)

    def node_of(self, stage: int) -> str:
        """The address of the node where a stage was placed, if Ray still knows it."""
        bundles = ray.util.placement_group_table(self.group).get("bundles_to_node_id", {})
        names = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
        return str(names.get(bundles.get(stage), "unknown"))


def reason_of(error: Exception) -> str:
    """The reason why a call failed, to follow the name of its stage."""
    if isinstance(error, RayTaskError):
        return f"failed: {one_line(str(error.cause))}"
    if isinstance(error, RayActorError):
        return "has ended: its process or its node is gone"
    return f"is lost: {one_line(str(error))}"
