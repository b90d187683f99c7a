"""LatentAttention on a GPU: there is no kernel yet."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..launch import Command


def lower(op: Lowering) -> list[Command]:
    """Raise BuildError, which says where such models run."""
    op.refuse("GPU kernels do not attend to latents yet: build for --target cpu")
