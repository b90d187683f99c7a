"""The server as an application of Ray Serve, on a cluster of two nodes."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray import serve

from tests.ray_cluster import TwoNodes, two_nodes
from trtllm_lite.serve.ray import app

_MAX_LOOKS = 100_000
_REPLICA = b"ray::ServeReplica"


class Service:
    """Two replicas of the server, one on each of ``nodes``, behind one proxy at ``address``."""

    def __init__(self, nodes: TwoNodes, address: str) -> None:
        self.nodes = nodes
        self.address = address

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
    with two_nodes() as nodes:
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        serve.run(app({"engine": str(engine), "num_replicas": 2, "num_threads": 1, **arguments}))
        yield Service(nodes, f"http://127.0.0.1:{port}")
        serve.shutdown()
