"""GatedDeltaRule on a GPU."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..cuda.replay import replay_defines
from ..cuda.state_places import StatePlaces
from ..launch import DTYPE_FLAGS, Command, features, kernel, launch, symbol

_MAX_COLUMNS = 128  # of a block at a time, four threads each
_MAX_KEY_DIM = 256  # a block's columns are in registers
_MAX_DECAY_DIM = 128  # of keys that are as long; a chunk's keys, queries and decays are in shared memory


def lower(op: Lowering) -> list[Command]:
    """Launch one kernel with a block for each head of a sequence."""
    y, rows = op.new("y"), tuple(op.rows(name) for name in ("qkv", "a", "b"))
    key_dim, value_dim = op.attribute("key_dim"), op.attribute("value_dim")
    heads = features(y) // value_dim
    if key_dim > _MAX_KEY_DIM:
        op.refuse(f"its keys have {key_dim} elements, expected at most {_MAX_KEY_DIM}: build for --target cpu")
    if (decays := op.attribute("decay_dim")) > _MAX_DECAY_DIM:
        op.refuse(f"its heads have {decays} decays, expected at most {_MAX_DECAY_DIM}: build for --target cpu")
    defines = {"TL_KEY_HEADS": op.attribute("num_key_heads"), "TL_VALUE_HEADS": heads, **replay_defines(op)}
    places, of_heads = StatePlaces.of(op, "recurrent_state"), (op.vector("a_log"), op.vector("dt_bias"))
    defines |= {"TL_FP16": DTYPE_FLAGS[y.dtype], **places.defines()}
    threads = 4 * min(-(-value_dim // 8) * 8, _MAX_COLUMNS)
    specialised = kernel("gated_delta_rule/cuda.cuh", "gated_delta_rule", threads, 0, defines)
    numbers = (op.attribute("scale"), op.attribute("norm_epsilon"))
    return [launch(specialised, (heads, symbol("num_seqs"), 1), y, *places.arguments(), *rows, *of_heads, *numbers)]
