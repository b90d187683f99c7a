"""4-bit weights by AWQ, and activations in FP8 with a scale for each token, computed at run time."""

from collections.abc import Sequence

from trtllm_lite.quantize.products import Product
from trtllm_lite.quantize.schemes.int4 import Int4Awq
from trtllm_lite.quantize.schemes.workpiece import Workpiece


class W4A8Awq(Int4Awq):
    """AWQ's factors and clipping, which are chosen for unquantized activations, with activations in FP8."""

    name = "w4a8_awq"

    def quantize(self, work: Workpiece, products: Sequence[Product]) -> None:
        """Implements :meth:`Scheme.quantize`."""
        super().quantize(work, products)
        for product in products:
            work.round_tokens(product, "float8_e4m3fn")
