"""Mamba2 on a GPU."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..cuda.replay import lower_replay
from ..launch import Command


def lower(op: Lowering) -> list[Command]:
    """Launch a kernel that takes a token after the other, before it possibly one for long sequences."""
    of_heads, bounds = ("a_log", "dt_bias", "d"), ("min_step", "max_step")
    return lower_replay(
        op, "mamba2", "xbc", ("dt",), of_heads, bounds, {"TL_GROUPS": op.attribute("num_groups")}, "TL_HEADS"
    )
