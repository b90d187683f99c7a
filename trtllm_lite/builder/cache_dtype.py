"""Chooses the types of the KV cache: those that the network rounds keys and values to, or the requested ones."""

import onnx_ir as ir

from trtllm_lite.builder.cache_groups import caches_of, layers_of
from trtllm_lite.builder.graph import operands
from trtllm_lite.common.vocabulary import FLOAT32, KV_CACHE_DTYPES, PLAIN_DTYPES, STATE
from trtllm_lite.errors import BuildError, shown
from trtllm_lite.network.dtypes import DTYPE_NAMES
from trtllm_lite.plugins.schema import all_schemas

AUTO_DTYPE = "auto"  # the network's type, or the usual type of the target; of keys, the type of values


def cache_dtype_of(graph: ir.Graph, wanted: str) -> str:
    """Return the dtype of the caches in the fused ``graph`` that are quantized, else ``wanted``.

    Raises BuildError if layers differ, or if a layer's cache cannot be quantized.
    """
    layers: dict[tuple[str, ...], str] = {}
    for node in (node for nodes in layers_of(graph) if caches_of(nodes)[0] != STATE for node in nodes):
        dtypes = dict[str, None]()
        for cache in all_schemas()[node.op_type].caches:
            if wanted in KV_CACHE_DTYPES and KV_CACHE_DTYPES[wanted] not in cache.dtypes:
                raise BuildError(
                    f"kv_cache_dtype is {wanted}, and {node.name} keeps a {cache.cache} cache, which the kernels read "
                    f"as {', '.join(cache.dtypes)} only: leave kv_cache_dtype out, or pass one of these"
                )
            stored = operands(node)[cache.name].dtype
            assert stored is not None
            dtypes[DTYPE_NAMES[stored]] = None
        layers.setdefault(tuple(dtypes), str(node.name))
    if len(layers) > 1:
        found = ", ".join(f"{layer} as {' and '.join(dtypes)}" for dtypes, layer in layers.items())
        raise BuildError(
            f"the network stores keys and values of {found}: a KV cache has the same types in all layers, so quantize "
            "all layers alike"
        )
    stored_as = {dtype for dtypes in layers for dtype in dtypes}
    return next((dtype for dtype in KV_CACHE_DTYPES.values() if dtype in stored_as), wanted)


def check_key_cache(key_cache_dtype: str, kv_cache_dtype: str) -> None:
    """Raise BuildError unless keys may have the type ``key_cache_dtype`` beside caches of ``kv_cache_dtype``.

    ``kv_cache_dtype`` is what :func:`cache_dtype_of` returns.
    """
    if key_cache_dtype not in (AUTO_DTYPE, *PLAIN_DTYPES):
        raise BuildError(
            f"key_cache_dtype is {shown(key_cache_dtype)}: expected {AUTO_DTYPE}, for the type of values, or one of "
            f"{', '.join(PLAIN_DTYPES)}"
        )
    if key_cache_dtype != AUTO_DTYPE and kv_cache_dtype not in KV_CACHE_DTYPES.values():
        raise BuildError(
            f"key_cache_dtype is {key_cache_dtype}, and values are not rounded to 8 bits: keys have a type of their "
            f"own only beside such values, so pass kv_cache_dtype {' or '.join(KV_CACHE_DTYPES)}, or leave "
            "key_cache_dtype out"
        )


def plain_dtype(key_cache_dtype: str, kv_cache_dtype: str) -> str:
    """Return the type on CPUs of caches whose content the network does not round: keys alone, or everything."""
    chosen = key_cache_dtype if kv_cache_dtype in KV_CACHE_DTYPES.values() else kv_cache_dtype
    return FLOAT32 if chosen == AUTO_DTYPE else chosen
