"""What CPU kernels compute and a GPU's do not yet, so that a build for a GPU says so before anything is made."""

import onnx_ir as ir

from trtllm_lite.errors import BuildError


def refuse_unsupported(graph: ir.Graph) -> None:
    """Raise BuildError for a network without RoPE: the kernel of the rotary table is what finds slots of the cache."""
    if not any(node.op_type == "RotaryTable" for node in graph):
        raise BuildError(
            "the network has no RoPE, and the GPU kernels find tokens' places in the KV cache together with its table: "
            "build for --target cpu"
        )
