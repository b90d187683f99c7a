"""Weights of 4 bits by AWQ, and activations in FP8 with a scale for each token, which is found as they come."""

from collections.abc import Sequence

from trtllm_lite.quantize.products import Product
from trtllm_lite.quantize.schemes.int4 import Int4Awq
from trtllm_lite.quantize.schemes.workpiece import Workpiece


class W4A8Awq(Int4Awq):
    """AWQ's factors and clipping are those that suit activations that are not rounded."""

    name = "w4a8_awq"

    def quantize(self, work: Workpiece, products: Sequence[Product]) -> None:
        """As :meth:`Scheme.quantize`."""
        super().quantize(work, products)
        for product in products:
            work.round_tokens(product, "float8_e4m3fn")
