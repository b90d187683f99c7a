"""Places stages on the nodes of a Ray cluster, as actors."""

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from trtllm_lite.errors import DeviceError
from trtllm_lite.runtime.ray.stage import Stage

PLACING_SECONDS = 30.0  # for the cluster to find the CPUs


def connect() -> None:
    """Join Ray's cluster, or start one of this machine alone where there is none; it stays until the process ends."""
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster that is started here reports to nobody
    ray.init(log_to_driver=False, logging_level=logging.WARNING)


def default_num_threads(num_stages: int) -> int:
    """Threads of a stage: the CPUs of the smallest node, which as few stages share as may be."""
    nodes = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
    nodes = [int(num_cpus) for num_cpus in nodes if num_cpus >= 1]
    stages_of_node = -(-num_stages // max(len(nodes), 1))
    return max(min(nodes, default=1) // stages_of_node, 1)


class Placement:
    """Actors of stages, each of ``num_threads`` CPUs, in one placement group; they are released together."""

    def __init__(self, stages: Sequence[Mapping[Path, str]], num_blocks: int, num_threads: int) -> None:
        """``stages``: see :class:`Stage`. Raises DeviceError if the cluster has too few CPUs."""
        self.group = placement_group([{"CPU": num_threads}] * len(stages), strategy="PACK")
        self.actors: list[Any] = []
        if not self.group.wait(PLACING_SECONDS):
            self.release()
            raise DeviceError(
                f"{len(stages)} stages of {num_threads} CPUs each find no place in the Ray cluster within "
                f"{PLACING_SECONDS:.0f} s: add nodes, or lower num_threads"
            )
        for number, digests in enumerate(stages):
            where = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=number)
            actor = ray.remote(Stage).options(
                num_cpus=num_threads, scheduling_strategy=where, max_restarts=0, max_task_retries=0
            )
            self.actors.append(actor.remote(digests, num_blocks, num_threads))

    def release(self) -> None:
        """End the actors, and give back what they had; releasing twice is fine."""
        if not ray.is_initialized():
            return  # the actors ended with the connection
        for actor in self.actors:
            ray.kill(actor)
        self.actors = []
        remove_placement_group(self.group)

    def node_of(self, stage: int) -> str:
        """The address of the node that a stage was placed on, if Ray still knows it."""
        bundles = ray.util.placement_group_table(self.group).get("bundles_to_node_id", {})
        names = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
        return str(names.get(bundles.get(stage), "unknown"))
