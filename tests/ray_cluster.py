"""A Ray cluster of two nodes on this machine, each with its own loopback address."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group, remove_placement_group

HEAD, WORKER = "127.0.0.2", "127.0.0.3"
_ONLY_WHAT_COMPUTES: dict[str, Any] = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
_CONFIG = {
    "health_check_period_ms": 100,  # Ray takes a node for dead after five failed checks in a row
    # Worker processes start when actors need them, not ahead for each CPU or for waiting tasks.
    "prestart_worker_first_driver": False,
    "enable_worker_prestart": False,
}


class TwoNodes:
    """Nodes of ``num_cpus`` CPUs and ``num_gpus`` GPUs each. This process is connected to the head node."""

    def __init__(self, cluster: Cluster, num_cpus: int, num_gpus: int) -> None:
        self._cluster = cluster
        self._has = {"num_cpus": num_cpus, "num_gpus": num_gpus}
        cluster.add_node(**self._has, node_ip_address=HEAD, _system_config=_CONFIG, **_ONLY_WHAT_COMPUTES)
        self._node: Any = None
        self.complete()
        ray.init(address=cluster.address, _node_ip_address=HEAD, log_to_driver=False)

    def complete(self) -> None:
        """Let the node that is not the head join, if it was killed."""
        if self._node is None:
            self._node = self._cluster.add_node(**self._has, node_ip_address=WORKER)

    def kill_node(self) -> None:
        """Kill the processes of the node that is not the head, and its workers, as if its machine had stopped.

        Workers left alone would compute on, until they find that their node is gone.
        """
        assert self._node is not None
        workers = [child for _, process in self._node.live_processes() for child in _children(process.pid)]
        self._cluster.remove_node(self._node, allow_graceful=False)
        self._node = None
        for worker in workers:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)

    def wait_until_free(self) -> None:
        """Wait until no actor holds a resource of any living node."""
        all_of_node = {"CPU": self._has["num_cpus"], "GPU": self._has["num_gpus"]}
        needs = {name: count for name, count in all_of_node.items() if count > 0}
        group = placement_group([needs] * (1 if self._node is None else 2), strategy="STRICT_SPREAD")
        assert group.wait(60), ray.available_resources()
        remove_placement_group(group)


def _children(pid: int) -> list[int]:
    """The processes that any thread of a process has started."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            found += map(int, path.read_text().split())
    return found


@contextmanager
def two_nodes(num_cpus: int, num_gpus: int = 0) -> Iterator[TwoNodes]:
    """A cluster of two nodes of ``num_cpus`` CPUs and ``num_gpus`` GPUs each, until the block ends."""
    cluster = Cluster()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # On a busy machine a proxy is late, and must not be replaced.
        patch.setenv("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")
        patch.setenv("RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S", "60")
        try:
            yield TwoNodes(cluster, num_cpus, num_gpus)
        finally:
            ray.shutdown()
            cluster.shutdown()
