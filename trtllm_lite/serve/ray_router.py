"""How Ray Serve's proxies choose a replica."""

import random

from ray.serve.request_router import FIFOMixin, PendingRequest, RequestRouter, RunningReplica


class AnyNodeRouter(FIFOMixin, RequestRouter):
    """Of two random replicas the one that answers fewer requests, wherever it is.

    Ray Serve's own router prefers the proxy's node as long as that takes requests, and a server takes many, which wait
    for its engine: the other nodes would idle.
    """

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,  # noqa: ARG002 - as RequestRouter has it
    ) -> list[list[RunningReplica]]:
        """Two replicas, of which RequestRouter takes the one with the shorter queue."""
        return [random.sample(candidate_replicas, min(len(candidate_replicas), 2))]
