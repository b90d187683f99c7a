"""How operators with a replayed state are lowered (``replay_rule.cuh``)."""

from __future__ import annotations

from collections.abc import Mapping

from ..launch import DTYPE_FLAGS, Command, features, kernel, launch, symbol
from .lowering import Lowering
from .state_places import StatePlaces

_MAX_COLUMNS = 128  # of a block at a time, four threads each
_MAX_KEY_DIM = 256  # a block's columns are in registers
_MAX_DECAY_DIM = 128  # of keys that are as long; a chunk's keys, queries and decays are in shared memory
_SIZES = {
    **{"TL_KEY_DIM": "key_dim", "TL_VALUE_DIM": "value_dim", "TL_DECAY_DIM": "decay_dim"},
    **{"TL_REPLAYED": "replay_tokens", "TL_TAKEN_BACK": "taken_back"},
}


def lower_replay(
    op: Lowering,
    name: str,
    rows: tuple[str, ...],
    of_heads: tuple[str, ...],
    numbers: tuple[str, ...],
    defines: Mapping[str, int],
    heads_macro: str,
) -> list[Command]:
    """Launch the kernel ``name`` of the operator's folder of that name, with a block for each head of a sequence.

    Its operands are ``rows`` of tokens, weights ``of_heads`` and the attributes ``numbers``.
    """
    y, read = op.new("y"), tuple(op.rows(one) for one in rows)
    sizes: dict[str, int] = {macro: op.attribute(size) for macro, size in _SIZES.items()}
    key_dim, value_dim, decays = (sizes[macro] for macro in ("TL_KEY_DIM", "TL_VALUE_DIM", "TL_DECAY_DIM"))
    if key_dim > _MAX_KEY_DIM:
        op.refuse(f"its keys have {key_dim} elements, expected at most {_MAX_KEY_DIM}: build for --target cpu")
    if decays > _MAX_DECAY_DIM:
        op.refuse(f"its heads have {decays} decays, expected at most {_MAX_DECAY_DIM}: build for --target cpu")
    heads, places = features(y) // value_dim, StatePlaces.of(op, "recurrent_state")
    macros = {**sizes, **defines, **places.defines(), heads_macro: heads, "TL_FP16": DTYPE_FLAGS[y.dtype]}
    threads = 4 * min(-(-value_dim // 8) * 8, _MAX_COLUMNS)
    specialised = kernel(f"{name}/cuda.cuh", name, threads, 0, macros)
    weights, given = (op.vector(one) for one in of_heads), (op.attribute(one) for one in numbers)
    return [launch(specialised, (heads, symbol("num_seqs")), y, *places.arguments(), *read, *weights, *given)]
