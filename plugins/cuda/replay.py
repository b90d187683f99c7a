"""What kernels of operators with a replayed state are told about it (``replay.cuh``)."""

from __future__ import annotations

from .lowering import Lowering


def replay_defines(op: Lowering) -> dict[str, int]:
    """Macros of ``replay.cuh``."""
    names = {"KEY_DIM": "key_dim", "VALUE_DIM": "value_dim", "DECAY_DIM": "decay_dim", "REPLAYED": "replay_tokens"}
    return {f"TL_{macro}": op.attribute(name) for macro, name in (names | {"TAKEN_BACK": "taken_back"}).items()}
