"""Refuses what engines with recurrent layers cannot do yet."""

import onnx_ir as ir

from trtllm_lite.common.vocabulary import WITH_STATES
from trtllm_lite.errors import BuildError
from trtllm_lite.network.contract import layer_kinds

_MOST_NAMED = 8


def check_recurrent(graph: ir.Graph, target: str) -> None:
    """Raise BuildError if the network ``graph`` has recurrent layers, and they do not fit ``target``."""
    found = [f"layers.{number}" for number, kind in layer_kinds(graph) if kind in WITH_STATES]
    if not found or target != "tensorrt":
        return
    more = [f"and {len(found) - _MOST_NAMED} more"] if len(found) > _MOST_NAMED else []
    raise BuildError(
        f"the network has {len(found)} recurrent layers ({', '.join([*found[:_MOST_NAMED], *more])}), and the target "
        f"is {target}: build with --backend native for cpu or a GPU"
    )
