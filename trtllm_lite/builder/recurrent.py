"""Refuses networks with recurrent layers, which engines do not have yet."""

import onnx_ir as ir

from trtllm_lite.common.vocabulary import RECURRENT
from trtllm_lite.errors import BuildError
from trtllm_lite.network.contract import layer_kinds

_MOST_NAMED = 8


def check_attention_alone(graph: ir.Graph) -> None:
    """Raise BuildError if the network ``graph`` has recurrent layers."""
    found = [f"layers.{number}" for number, kind in enumerate(layer_kinds(graph)) if kind == RECURRENT]
    if found:
        more = [f"and {len(found) - _MOST_NAMED} more"] if len(found) > _MOST_NAMED else []
        raise BuildError(
            f"the network has {len(found)} recurrent layers ({', '.join([*found[:_MOST_NAMED], *more])}): engines keep "
            "keys and values only, not the states of such layers; pass a model with attention in every layer, or run "
            "the checkpoint's network.onnx with onnxruntime"
        )
