"""Chooses the replica of a request in Ray Serve's proxies."""

import random

from ray.serve.request_router import FIFOMixin, PendingRequest, RequestRouter, RunningReplica


class AnyNodeRouter(FIFOMixin, RequestRouter):
    """Chooses, between two random replicas, the one with fewer requests, on any node.

    Ray Serve's own router prefers replicas on the proxy's node as long as they take requests. A server takes many
    requests, which wait for its engine, so that other nodes would idle.
    """

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,  # noqa: ARG002 - the signature of RequestRouter
    ) -> list[list[RunningReplica]]:
        """Return two replicas, of which RequestRouter takes the one with the shorter queue."""
        return [random.sample(candidate_replicas, min(len(candidate_replicas), 2))]
