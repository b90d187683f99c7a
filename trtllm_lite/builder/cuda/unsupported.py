"""What CPU kernels compute and GPU kernels do not yet, so that a build for a GPU says so before anything is made."""

from collections.abc import Iterator

import onnx_ir as ir

from trtllm_lite.builder.graph import attribute, dims
from trtllm_lite.errors import BuildError

_CPU_ONLY = ("LayerNorm", "PositionEmbedding", "Rowwise")
_ACTIVATIONS = {"Linear": "none", "GatedLinear": "silu"}


def refuse_unsupported(graph: ir.Graph) -> None:
    """Raise BuildError if the fused graph holds what no GPU kernel computes."""
    problems = [f"{node.name}: {problem}" for node in graph for problem in _problems(node)]
    if problems:
        raise BuildError(f"the GPU kernels do not support {'; '.join(problems[:10])}: build for --target cpu")


def _problems(node: ir.Node) -> Iterator[str]:
    if node.op_type in _CPU_ONLY:
        yield node.op_type
    activation = attribute(node, "activation")
    if node.op_type in _ACTIVATIONS and activation != _ACTIVATIONS[node.op_type]:
        yield f"the activation {activation} of {node.op_type}"
    if node.op_type == "PagedAttention":
        cos, key_cache = dims(node.inputs[1]), dims(node.inputs[3])
        if cos is None or key_cache is None or cos[-1] != (key_cache[2] or 0) / 2:  # type: ignore[operator]
            yield "attention without RoPE of whole heads"
