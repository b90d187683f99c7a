"""FP8 as transformers and DeepSeek store it (``quant_method: fp8``).

With ``weight_block_size`` a matrix has a scale for each tile of that many rows and columns, ``weight_scale_inv``
(DeepSeek-V3, arXiv 2412.19437, section 3.3). That method also rounds activations, with a scale for each 128 elements of
a token; here they are not quantized. Without tiles a matrix has one ``weight_scale``, and its activations have one
``input_scale`` (``static``), or a scale for each token (``dynamic``); transformers (integrations/finegrained_fp8.py)
has other names for both.
"""

from dataclasses import replace

from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.quantized.bytes import bytes_by_row, fp8_in_tiles
from trtllm_lite.convert.quantized.kv_cache import KvCache
from trtllm_lite.convert.quantized.layer import Layer, Matrix, static_rounding
from trtllm_lite.convert.quantized.method import LinearMethod
from trtllm_lite.errors import shown
from trtllm_lite.network.blocks import Rounding

_FP8 = "float8_e4m3fn"
_SCHEMES = ("static", "dynamic")
_NAMES = {"weight_scale_inv": "weight_scale", "activation_scale": "input_scale"}  # names in transformers
# Settings that repeat what the tensors show, or concern layers that no supported model has.
_NEUTRAL = ("modules_to_not_convert", "modules_to_convert", "ignored_layers", "scale_fmt", "expert_dtype", "dequantize")


class Fp8(LinearMethod):
    """One layout for all layers."""

    def __init__(self, fields: ConfigFields) -> None:
        """Take the settings; an unsupported value becomes a problem of ``fields``."""
        for key in _NEUTRAL:
            fields.take(key)
        fields.expect("fmt", "e4m3", "e4m3fn", _FP8)
        scheme, tile = fields.take("activation_scheme") or "dynamic", fields.take("weight_block_size")
        if scheme not in _SCHEMES:
            fields.problem("activation_scheme", f"expected one of {', '.join(_SCHEMES)}, found {shown(scheme)}")
        if tile is not None and not is_tile(tile):
            fields.problem("weight_block_size", f"expected two positive numbers, found {shown(tile)}")
            tile = None
        self.kv_cache = KvCache.read(fields, "kv_cache_scheme")
        self._is_static, self._tile = scheme == "static", None if tile is None else (tile[0], tile[1])
        tiles = "" if tile is None else f" in tiles of {tile[0]}x{tile[1]}, weights only"
        self.description = f"fp8{tiles}"

    def matrix(self, layer: Layer) -> Matrix:
        """Implements :meth:`LinearMethod.matrix`."""
        if self._tile is not None:
            return fp8_in_tiles(layer, "weight_scale_inv", self._tile)
        stored = {_NAMES.get(tensor, tensor): tensor for tensor in layer.tensors}
        infos = {name: layer.tensors[tensor] for name, tensor in stored.items()}
        usual = Layer(layer.name, infos, lambda name: layer.load(stored[name]))
        rounding = static_rounding(usual, _FP8) if self._is_static else Rounding(_FP8)
        matrix = bytes_by_row(usual, _FP8, rounding)
        return replace(matrix, stored=tuple(stored.get(name, name) for name in matrix.stored))


def is_tile(value: object) -> bool:
    """Whether ``value`` is the extents of a tile: two positive integers."""
    return isinstance(value, list) and len(value) == 2 and all(type(extent) is int and extent > 0 for extent in value)
