"""How a network is quantized: a file for each scheme, and the table of all."""

from trtllm_lite.quantize.schemes.fp8 import Fp8, Fp8Rowwise
from trtllm_lite.quantize.schemes.int4 import Int4Awq, Int4Gptq, Int4WeightOnly
from trtllm_lite.quantize.schemes.int8_sq import Int8SmoothQuant
from trtllm_lite.quantize.schemes.scheme import Needs, Scheme
from trtllm_lite.quantize.schemes.w4a8_awq import W4A8Awq
from trtllm_lite.quantize.schemes.weight_only import FP8_WO, INT8_WO

FULL_PRECISION = "full_prec"  # products as the checkpoint has them
# The names are TensorRT-LLM's where it has such a scheme.
_ALL = (
    *(INT8_WO, FP8_WO, Int4WeightOnly(), Int4Awq(), Int4Gptq()),
    *(Fp8Rowwise(), Fp8(), Int8SmoothQuant(), W4A8Awq()),
)
SCHEMES: dict[str, Scheme] = {scheme.name: scheme for scheme in _ALL}

__all__ = ["FULL_PRECISION", "SCHEMES", "Needs", "Scheme"]
