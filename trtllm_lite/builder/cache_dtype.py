"""The type of the KV cache: what the network rounds keys and values to, or what the build is asked for."""

import onnx_ir as ir

from trtllm_lite.builder.graph import nodes_of, operands
from trtllm_lite.errors import BuildError
from trtllm_lite.network.dtypes import DTYPE_NAMES
from trtllm_lite.plugins.schema import DOMAIN
from trtllm_lite.quantize.kv_cache import KV_CACHE_DTYPES

AUTO_DTYPE = "auto"  # that of the network, or whatever is usual on the target


def cache_dtype_of(graph: ir.Graph, wanted: str) -> str:
    """``wanted``, or the dtype of caches whose elements are numbers of a scale in the fused ``graph``.

    Raises BuildError if layers differ.
    """
    layers: dict[str, str] = {}
    for node in nodes_of(graph, "PagedAttention", DOMAIN):
        stored = operands(node)["key_cache"].dtype
        assert stored is not None
        layers.setdefault(DTYPE_NAMES[stored], str(node.name))
    if len(layers) > 1:
        found = ", ".join(f"{layer} as {dtype}" for dtype, layer in layers.items())
        raise BuildError(
            f"the network stores keys and values of {found}: a KV cache has one type, so quantize all layers alike"
        )
    return next((dtype for dtype in KV_CACHE_DTYPES.values() if dtype in layers), wanted)
