"""The server as an application of Ray Serve, on a cluster of two nodes."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray import serve
from ray.util import placement_group_table

from tests.ray_cluster import TwoNodes, two_nodes
from tests.serve.waiting import first_of
from trtllm_lite.cli.ray_serve import app

_REPLICA = b"ray::ServeReplica"


class Service:
    """A Ray Serve application on ``nodes`` of two CPUs each, behind one proxy at ``address``."""

    def __init__(self, nodes: TwoNodes, address: str) -> None:
        self.nodes = nodes
        self.address = address

    def run(self, engine: Path, **arguments: Any) -> None:
        """Serve an engine in place of the previous one."""
        serve.delete("default")
        serve.run(app({"engine": str(engine), **arguments}))

    def replicas(self) -> set[int]:
        """The processes of the replicas."""
        return {int(path.name) for path in Path("/proc").glob("[0-9]*") if _command(path).startswith(_REPLICA)}

    def num_stages(self) -> list[int]:
        """For each engine whose stages run in Ray actors, the number of stages."""
        groups = placement_group_table().values()
        return [len(group["bundles"]) for group in groups if group["state"] == "CREATED"]

    def wait_until_whole(self) -> None:
        """Wait until two replicas run and both are alive."""

        def is_whole() -> bool:
            if len(self.replicas()) != 2:
                return False
            deployment = serve.status().applications["default"].deployments["server"]
            return deployment.replica_states == {"RUNNING": 2}

        assert first_of(is_whole), "the replicas did not come back"

    def kill_replica(self) -> None:
        """Kill the process of one of the replicas."""
        os.kill(min(self.replicas()), signal.SIGKILL)


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:  # the process has ended
        return b""


@contextmanager
def replicated(engine: Path, **arguments: Any) -> Iterator[Service]:
    """Serve an engine by two replicas, each on its own node, until the block ends."""
    with two_nodes(num_cpus=2) as nodes:
        with socket.create_server(("127.0.0.1", 0)) as probe:  # after the nodes have chosen their ports
            port = probe.getsockname()[1]
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        service = Service(nodes, f"http://127.0.0.1:{port}")
        service.run(engine, num_replicas=2, num_threads=2, **arguments)
        yield service
        serve.shutdown()
