"""Maps names of other engines for quantization schemes to the qformats here."""

from collections.abc import Mapping
from enum import StrEnum


class QuantAlgo(StrEnum):
    """TensorRT-LLM's names of quantization schemes; QuantConfig says which of them are supported."""

    NO_QUANT = "NO_QUANT"
    W8A16 = "W8A16"
    W8A16_GPTQ = "W8A16_GPTQ"
    W4A16 = "W4A16"
    W4A16_AWQ = "W4A16_AWQ"
    W4A16_GPTQ = "W4A16_GPTQ"
    W4A16_MXFP4 = "W4A16_MXFP4"
    W4A8_AWQ = "W4A8_AWQ"
    W4A8_MXFP4_FP8 = "W4A8_MXFP4_FP8"
    W4A8_MXFP4_MXFP8 = "W4A8_MXFP4_MXFP8"
    W4A8_NVFP4_FP8 = "W4A8_NVFP4_FP8"
    W4A8_QSERVE_PER_CHANNEL = "W4A8_QSERVE_PER_CHANNEL"
    W4A8_QSERVE_PER_GROUP = "W4A8_QSERVE_PER_GROUP"
    W8A8_SQ_PER_CHANNEL = "W8A8_SQ_PER_CHANNEL"
    W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN = "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN"
    W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN = "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN"
    W8A8_SQ_PER_TENSOR_PLUGIN = "W8A8_SQ_PER_TENSOR_PLUGIN"
    W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN = "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN"
    FP8 = "FP8"
    FP8_PER_CHANNEL_PER_TOKEN = "FP8_PER_CHANNEL_PER_TOKEN"
    FP8_BLOCK_SCALES = "FP8_BLOCK_SCALES"
    INT8 = "INT8"
    NVFP4 = "NVFP4"
    NVFP4_AWQ = "NVFP4_AWQ"
    MIXED_PRECISION = "MIXED_PRECISION"


QUANT_ALGOS: Mapping[str, str] = {
    QuantAlgo.NO_QUANT: "full_prec",
    QuantAlgo.W8A16: "int8_wo",
    QuantAlgo.W4A16: "int4_wo",
    QuantAlgo.W4A16_AWQ: "int4_awq",
    QuantAlgo.W4A16_GPTQ: "int4_gptq",
    QuantAlgo.W4A8_AWQ: "w4a8_awq",
    QuantAlgo.FP8: "fp8",
    QuantAlgo.FP8_PER_CHANNEL_PER_TOKEN: "fp8_rowwise",
    QuantAlgo.W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN: "int8_sq",
}
"""Maps the schemes that quantize a model here to their qformats."""
CACHE_ALGOS: Mapping[str, str] = {QuantAlgo.FP8: "fp8", QuantAlgo.INT8: "int8"}
"""Maps the schemes of KV caches to their types."""
VLLM: Mapping[str, str] = {"fp8": "fp8_rowwise"}
"""Maps vLLM's names of schemes for models that are stored in full precision."""
