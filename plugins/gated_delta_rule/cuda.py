"""GatedDeltaRule on a GPU."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..cuda.replay import lower_replay
from ..launch import Command


def lower(op: Lowering) -> list[Command]:
    """Launch a kernel that takes a token after the other, before it possibly one for long sequences."""
    gates, of_heads, numbers = ("a", "b"), ("a_log", "dt_bias"), ("scale", "norm_epsilon")
    defines = {"TL_KEY_HEADS": op.attribute("num_key_heads")}
    return lower_replay(op, "gated_delta_rule", "qkv", gates, of_heads, numbers, defines, "TL_VALUE_HEADS")
