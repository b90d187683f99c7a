"""Defines how a network is quantized: a file for each way to treat activations, and the table of all schemes."""

from trtllm_lite.quantize.formats import Float8, Int8
from trtllm_lite.quantize.rounding.numbers import FP8
from trtllm_lite.quantize.schemes.fp8 import Fp8, Fp8Rowwise
from trtllm_lite.quantize.schemes.int4 import Int4Awq, Int4Gptq, Int4WeightOnly
from trtllm_lite.quantize.schemes.int8_sq import Int8SmoothQuant
from trtllm_lite.quantize.schemes.scheme import Needs, Scheme
from trtllm_lite.quantize.schemes.w4a8_awq import W4A8Awq
from trtllm_lite.quantize.schemes.weight_only import WeightOnly
from trtllm_lite.quantize.schemes.weights import Gptq, Nearest

FULL_PRECISION = "full_prec"  # products stay as in the checkpoint
_FP8, _FP8_GPTQ = Nearest(Float8()), Gptq(Float8(), FP8)
# Names are TensorRT-LLM's if it has the scheme.
_ALL = (
    *(WeightOnly("int8_wo", Nearest(Int8())), WeightOnly("fp8_wo", _FP8), Int4WeightOnly(), Int4Awq(), Int4Gptq()),
    *(Fp8Rowwise("fp8_rowwise", _FP8), Fp8Rowwise("fp8_rowwise_gptq", _FP8_GPTQ)),
    *(Fp8("fp8", _FP8), Fp8("fp8_gptq", _FP8_GPTQ)),
    *(Int8SmoothQuant(), W4A8Awq()),
)
SCHEMES: dict[str, Scheme] = {scheme.name: scheme for scheme in _ALL}

__all__ = ["FULL_PRECISION", "SCHEMES", "Needs", "Scheme"]
