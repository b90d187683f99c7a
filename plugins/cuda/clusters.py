"""Clusters of blocks, which access each other's shared memory."""

from __future__ import annotations

from ..launch import Extent, symbol

CLUSTER_ARCH = "sm_90a"
"""The target of kernels whose blocks form clusters."""
RESIDENT = {1: 132, 2: 132, 4: 120, 8: 112}
"""How many blocks an H200 runs at a time, one on each SM, by the number of blocks in a cluster."""


def resident_grid(cluster: int) -> Extent:
    """The number of blocks that a GPU runs at a time, in whole clusters."""
    if cluster == 1:
        return symbol("num_sms")
    return Extent(0, (("num_sms", RESIDENT[cluster], RESIDENT[1] * cluster),) * cluster)
