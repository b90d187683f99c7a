"""Chooses the type of the KV cache: the type that the network rounds keys and values to, or the requested one."""

import onnx_ir as ir

from trtllm_lite.builder.cache_groups import caches_of, layers_of
from trtllm_lite.builder.graph import operands
from trtllm_lite.common.vocabulary import KV_CACHE_DTYPES, STATE
from trtllm_lite.errors import BuildError
from trtllm_lite.network.dtypes import DTYPE_NAMES
from trtllm_lite.plugins.schema import all_schemas

AUTO_DTYPE = "auto"  # the network's type, or the usual type of the target


def cache_dtype_of(graph: ir.Graph, wanted: str) -> str:
    """Return the dtype of the caches in the fused ``graph`` if they are quantized, else ``wanted``.

    Raises BuildError if layers differ, or if a layer's cache cannot be quantized.
    """
    layers: dict[str, str] = {}
    for node in (node for nodes in layers_of(graph) if caches_of(nodes)[0] != STATE for node in nodes):
        for cache in all_schemas()[node.op_type].caches:
            if wanted in KV_CACHE_DTYPES and KV_CACHE_DTYPES[wanted] not in cache.dtypes:
                raise BuildError(
                    f"kv_cache_dtype is {wanted}, and {node.name} keeps a {cache.cache} cache, which the kernels read "
                    f"as {', '.join(cache.dtypes)} only: leave kv_cache_dtype out, or pass one of these"
                )
            stored = operands(node)[cache.name].dtype
            assert stored is not None
            layers.setdefault(DTYPE_NAMES[stored], str(node.name))
    if len(layers) > 1:
        found = ", ".join(f"{layer} as {dtype}" for dtype, layer in layers.items())
        raise BuildError(
            f"the network stores keys and values of {found}: a KV cache has one type, so quantize all layers alike"
        )
    return next((dtype for dtype in KV_CACHE_DTYPES.values() if dtype in layers), wanted)
