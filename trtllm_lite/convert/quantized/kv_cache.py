"""Reads the scales of keys and values that a source's makers quantized: one for each layer's keys, one for its values.

The scales are separate tensors: ``…self_attn.k_scale``, or ``…self_attn.k_proj.k_scale`` in ModelOpt. Attention reads
each number of the cache times the scale.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trtllm_lite.common.vocabulary import PLAIN_DTYPES
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.sources.source import Source
from trtllm_lite.errors import ConvertError, shown
from trtllm_lite.network.blocks import Rounding
from trtllm_lite.network.context import CacheRounding

_SCALE = re.compile(r"(.+\.)?(?P<layer>\d{1,6})\.(?:[a-z_]+\.)(?:[kv]_proj\.)?(?P<what>[kv])_scale")
_KINDS = {"float8": "float8_e4m3fn", "int8": "int8"}
_ALGORITHMS = {"FP8": "float8_e4m3fn", "INT8": "int8", "static": "float8_e4m3fn"}
_NAMES = {"float8_e4m3fn": "FP8", "int8": "int8"}


@dataclass(frozen=True)
class KvCache:
    """The type of quantized keys and values: ``dtype``, "" if unsupported, and ``stated``, the source's name of it."""

    dtype: str
    stated: str

    @classmethod
    def read(cls, fields: ConfigFields, *keys: str) -> "KvCache | None":
        """Read the settings under ``keys``, of which a source has at most one; None if it has none."""
        given = [value for key in keys if (value := fields.take(key))]
        if not given:
            return None
        scheme = given[0]
        if not isinstance(scheme, dict):
            return cls(_ALGORITHMS.get(str(scheme), ""), str(scheme))
        kind, strategy = f"{scheme.get('type')}{scheme.get('num_bits')}", scheme.get("strategy") or "tensor"
        usual = strategy == "tensor" and not scheme.get("dynamic") and scheme.get("symmetric", True)
        how = "dynamic" if scheme.get("dynamic") else f"by {strategy}"
        return cls(_KINDS.get(kind, "") if usual else "", f"{kind} {how}")


def is_cache_scale(tensor: str) -> bool:
    """Whether the tensor of that name is a scale of keys or values."""
    return _SCALE.fullmatch(tensor) is not None


def read_scales(source: Source, cache: KvCache | None) -> tuple[Mapping[int, CacheRounding], str]:
    """How layers round keys and values, by the number of the layer, and a sentence for a description of ``source``.

    The result is empty, and keys and values are not rounded, if the source has no scales, or scales that engines do not
    support. Raises ConvertError if only some layers have scales, or if a scale is not a positive number.
    """
    if cache is None:
        return {}, ""
    scales = _scales(source)
    if not cache.dtype:
        return {}, f", KV cache as it is ({shown(cache.stated)} is not supported)"
    if not scales:
        return {}, f", KV cache as it is ({_NAMES[cache.dtype]} without scales)"
    layers = sorted({layer for layer, _ in scales})
    missing = [f"{what}_scale of layer {layer}" for layer in layers for what in "kv" if (layer, what) not in scales]
    if missing:
        raise ConvertError(
            f"{source.description} is to have a KV cache of {_NAMES[cache.dtype]}, and there is no "
            f"{', '.join(missing)}: download it again, or quantize it again"
        )
    keys, values = ([Rounding(cache.dtype, _number(source, scales[layer, what])) for layer in layers] for what in "kv")
    return dict(zip(layers, zip(keys, values, strict=True), strict=True)), f", KV cache {_NAMES[cache.dtype]}"


def _scales(source: Source) -> Mapping[tuple[int, str], str]:
    """The names of all scales, by the number of the layer and by k or v."""
    found: dict[tuple[int, str], str] = {}
    for name in source.tensors:
        match = _SCALE.fullmatch(name)
        if match is None:
            continue
        other = found.setdefault((int(match["layer"]), match["what"]), name)
        if other != name:
            raise ConvertError(f"{other} and {name} are scales of one KV cache: expected one; download the model again")
    return found


def _number(source: Source, tensor: str) -> float:
    info = source.tensors[tensor]
    value = source.read(tensor).astype(np.float32).reshape(-1) if info.dtype in PLAIN_DTYPES else np.array([np.nan])
    if value.size != 1 or not 0 < value[0] < np.inf:
        raise ConvertError(
            f"{tensor}: expected the scale of a KV cache to be one positive number, found {info.dtype} "
            f"{list(info.shape)} {shown(value[:3].tolist())}: download it again, or quantize it again"
        )
    return float(value[0])
