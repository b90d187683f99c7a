"""A cluster of Ray on this machine, whose nodes have loopback addresses of their own, and the server on it."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.cluster_utils import Cluster

from trtllm_lite.serve.ray import app

HEAD, WORKER = "127.0.0.2", "127.0.0.3"
_MAX_LOOKS = 100_000
_REPLICA = b"ray::ServeReplica"


class Service:
    """Two replicas of the server, one on each node, behind one proxy at ``address``."""

    def __init__(self, cluster: Cluster, address: str) -> None:
        self.address = address
        self._cluster = cluster
        self.add_node()

    def add_node(self) -> None:
        """Let the node that is not the head join."""
        self._node = self._cluster.add_node(num_cpus=1, node_ip_address=WORKER)

    def remove_node(self) -> None:
        """Kill the processes of the node that is not the head."""
        self._cluster.remove_node(self._node, allow_graceful=False)

    def replicas(self) -> set[int]:
        """Processes of the replicas."""
        return {int(path.name) for path in Path("/proc").glob("[0-9]*") if _command(path).startswith(_REPLICA)}

    def wait_until_whole(self) -> None:
        """Wait until two replicas run that are both alive."""
        for _ in range(_MAX_LOOKS):
            if len(self.replicas()) == 2:
                found = serve.status().applications["default"].deployments["server"].replica_states
                if found == {"RUNNING": 2}:
                    return
        raise AssertionError("the replicas did not come back")

    def kill_replica(self) -> None:
        """Kill the process of one of the replicas."""
        os.kill(min(self.replicas()), signal.SIGKILL)


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:  # it has ended
        return b""


@contextmanager
def replicated(engine: Path, **arguments: Any) -> Iterator[Service]:
    """Serve an engine by two replicas, of one thread each, until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "node_ip_address": HEAD, "include_dashboard": False},
    )
    try:
        service = Service(cluster, f"http://127.0.0.1:{port}")
        ray.init(address=cluster.address, _node_ip_address=HEAD, log_to_driver=False)
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        serve.run(app({"engine": str(engine), "num_replicas": 2, "num_threads": 1, **arguments}))
        yield service
        serve.shutdown()
    finally:
        ray.shutdown()
        cluster.shutdown()
