"""NVIDIA ModelOpt (``quant_method: modelopt``), as its export_hf_checkpoint writes it.

https://github.com/NVIDIA/Model-Optimizer, modelopt/torch/export. The settings are in config.json, or under
``quantization`` in hf_quant_config.json of older checkpoints (:mod:`trtllm_lite.convert.sources.hugging_face`).
"""

from collections.abc import Callable, Mapping

import numpy as np

from trtllm_lite.common.vocabulary import PLAIN_DTYPES
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.quantized.bytes import bytes_by_row, fp8_in_tiles
from trtllm_lite.convert.quantized.fp4 import mxfp4, nvfp4
from trtllm_lite.convert.quantized.groups import Groups
from trtllm_lite.convert.quantized.kv_cache import KvCache
from trtllm_lite.convert.quantized.layer import Layer, Matrix, static_rounding
from trtllm_lite.convert.quantized.method import LinearMethod
from trtllm_lite.convert.quantized.words import in_pairs
from trtllm_lite.errors import shown
from trtllm_lite.network.blocks import Rounding

_FP8 = "float8_e4m3fn"


def _int4_awq(layer: Layer) -> Matrix:
    """Read ``weight`` uint8 [out / 2, in]: two's complement, even output features in the low bits, odd ones above."""
    packed, in_features = layer.find("weight", ("uint8",), 2).shape
    scale = layer.find("weight_scale", PLAIN_DTYPES, 2)
    count = scale.shape[1]
    layer.expect("weight_scale", (2 * packed, count))
    groups = Groups(
        (2 * packed, in_features),
        4,
        count,
        lambda: in_pairs(layer.load("weight"), axis=0) ^ np.uint8(8),
        lambda: layer.load("weight_scale"),
        scale.dtype,
        None,
    )
    return groups.matrix(layer, "weight", "weight_scale").with_factors(layer, "pre_quant_scale")


def _smoothed_int8(layer: Layer) -> Matrix:
    return bytes_by_row(layer, "int8", static_rounding(layer, "int8")).with_factors(layer, "pre_quant_scale")


_ALGORITHMS: Mapping[str, Callable[[Layer], Matrix]] = {
    "FP8": lambda layer: bytes_by_row(layer, _FP8, static_rounding(layer, _FP8)),
    "FP8_PER_CHANNEL_PER_TOKEN": lambda layer: bytes_by_row(layer, _FP8, Rounding(_FP8)),
    "W8A8_SQ_PER_CHANNEL": _smoothed_int8,
    "W4A16_AWQ": _int4_awq,
    "NVFP4": lambda layer: nvfp4(layer, "weight", "weight_scale_2", divides=False),
    "NVFP4_AWQ": lambda layer: nvfp4(layer, "weight", "weight_scale_2", divides=False).with_factors(
        layer, "pre_quant_scale"
    ),
    "mxfp4": lambda layer: mxfp4(layer, "weight"),
    "fp8_pb_wo": lambda layer: fp8_in_tiles(layer, "weight_scale", (128, 128)),
    "W8A16": lambda layer: bytes_by_row(layer, "int8"),
}
# Settings that repeat what the algorithm and the tensors show.
_REPEATED = [
    "producer",
    "config_groups",
    "ignore",
    "exclude_modules",
    "group_size",
    "has_zero_point",
    "pre_quant_scale",
]

# Algorithms that also quantize activations; no kernel multiplies those by 4-bit weights, so they stay unquantized.
_WEIGHTS_ONLY = ("NVFP4", "NVFP4_AWQ", "mxfp4")
_MIXED = "MIXED_PRECISION"  # ``quantized_layers`` has the algorithm of each


class ModelOpt(LinearMethod):
    """One algorithm for all layers, or one for each."""

    def __init__(self, fields: ConfigFields) -> None:
        """Take the settings; an unsupported value becomes a problem of ``fields``."""
        for key in _REPEATED:
            fields.take(key)
        self._algorithm = str(fields.take("quant_algo"))
        self._of_layers = _algorithms_of(fields) if self._algorithm == _MIXED else {}
        used = sorted(set(self._of_layers.values())) if self._algorithm == _MIXED else [self._algorithm]
        for name in used:
            if name not in _ALGORITHMS:
                fields.problem("quant_algo", f"expected one of {', '.join([*_ALGORITHMS, _MIXED])}, found {name}")
        self.kv_cache = KvCache.read(fields, "kv_cache_scheme", "kv_cache_quant_algo")
        weights_only = ", weights only" if set(used) <= set(_WEIGHTS_ONLY) else ""
        self.description = f"modelopt {' and '.join(used)}{weights_only}"

    def matrix(self, layer: Layer) -> Matrix:
        """Implements :meth:`LinearMethod.matrix`."""
        algorithm = self._of_layers.get(layer.name) if self._algorithm == _MIXED else self._algorithm
        if algorithm is None:
            raise layer.error("expected its algorithm in quantized_layers, found none: export the model again")
        return _ALGORITHMS[algorithm](layer)


def _algorithms_of(fields: ConfigFields) -> dict[str, str]:
    """The algorithm of each layer; a value that is none becomes a problem of ``fields``."""
    layers = fields.take("quantized_layers")
    if isinstance(layers, dict) and layers and all(isinstance(one, dict) for one in layers.values()):
        return {name: str(one.get("quant_algo")) for name, one in layers.items()}
    fields.problem("quantized_layers", f"expected an object with the quant_algo of each layer, found {shown(layers)}")
    return {}
