"""Adapts the standard network to TensorRT: logits of chosen rows, products and caches of its types.

The result is still a standard network, which onnxruntime runs. It has one more input than a checkpoint's network,
``logits_indices``; caches have a static length.
"""

from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.builder.passes.chosen_frequencies import chosen_frequencies
from trtllm_lite.builder.passes.contract import GraphPass
from trtllm_lite.builder.tensorrt.passes.bodies import BODIES
from trtllm_lite.builder.tensorrt.passes.caches import static_caches
from trtllm_lite.builder.tensorrt.passes.chosen_logits import CHOSEN_LOGITS
from trtllm_lite.builder.tensorrt.passes.products import typed_products
from trtllm_lite.network.dtypes import ONNX


def pipeline(dtype: str, limits: BuildLimits) -> tuple[GraphPass, ...]:
    """The passes for a network whose matrices, keys and values are ``dtype`` (float16 or bfloat16)."""
    narrow = ONNX[dtype]
    length = limits.max_seq_len
    return (chosen_frequencies(length), CHOSEN_LOGITS, typed_products(narrow), static_caches(narrow, length), BODIES)


__all__ = ["pipeline"]
