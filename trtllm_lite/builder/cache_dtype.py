"""Chooses the type of the KV cache: the type that the network rounds keys and values to, or the requested one."""

import onnx_ir as ir

from trtllm_lite.builder.cache_groups import attention_nodes
from trtllm_lite.builder.graph import operands
from trtllm_lite.common.vocabulary import KV_CACHE_DTYPES
from trtllm_lite.errors import BuildError
from trtllm_lite.network.dtypes import DTYPE_NAMES

AUTO_DTYPE = "auto"  # the network's type, or the usual type of the target


def cache_dtype_of(graph: ir.Graph, wanted: str) -> str:
    """Return the dtype of the caches in the fused ``graph`` if they are quantized, else ``wanted``.

    Raises BuildError if layers differ, or if a layer's cache cannot be quantized.
    """
    layers: dict[str, str] = {}
    for node in attention_nodes(graph):
        if node.op_type == "LatentAttention" and wanted in KV_CACHE_DTYPES:
            raise BuildError(
                f"kv_cache_dtype is {wanted}, and {node.name} keeps latents, which the kernels read as 16-bit and "
                "32-bit types only: leave kv_cache_dtype out, or pass float32, float16 or bfloat16"
            )
        stored = operands(node)["key_cache"].dtype
        assert stored is not None
        layers.setdefault(DTYPE_NAMES[stored], str(node.name))
    if len(layers) > 1:
        found = ", ".join(f"{layer} as {dtype}" for dtype, layer in layers.items())
        raise BuildError(
            f"the network stores keys and values of {found}: a KV cache has one type, so quantize all layers alike"
        )
    return next((dtype for dtype in KV_CACHE_DTYPES.values() if dtype in layers), wanted)
