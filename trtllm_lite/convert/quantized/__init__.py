"""Presents sources with quantized linear layers as sources with matrices in blocks: nothing is rounded.

A quantized layer has several tensors, whose names and layouts differ from method to method (a file for each). After
:func:`as_blocks` it has one matrix ``weight``, like any layer, which may be read as the parts of its blocks, or
expanded. Layers that a method leaves in floating point stay as they are.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from numpy.typing import NDArray

from trtllm_lite.common.vocabulary import PLAIN_DTYPES
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.quantized.auto_round import auto_round
from trtllm_lite.convert.quantized.awq import Awq
from trtllm_lite.convert.quantized.bitsandbytes import Bitsandbytes
from trtllm_lite.convert.quantized.compressed_tensors import CompressedTensors
from trtllm_lite.convert.quantized.fp8 import Fp8
from trtllm_lite.convert.quantized.gptq import Gptq
from trtllm_lite.convert.quantized.kv_cache import is_cache_scale, read_scales
from trtllm_lite.convert.quantized.layer import ExpandedMatrix, Layer, Matrix
from trtllm_lite.convert.quantized.method import UNQUANTIZED, Method
from trtllm_lite.convert.quantized.modelopt import ModelOpt
from trtllm_lite.convert.quantized.mxfp4 import Mxfp4
from trtllm_lite.convert.quantized.refused import REFUSED
from trtllm_lite.convert.sources.safetensors_file import TensorInfo
from trtllm_lite.convert.sources.source import Source
from trtllm_lite.errors import ConvertError, shown
from trtllm_lite.network.blocks import part_name

SETTINGS = "quantization_config"
# Maps the quant_method of the settings to a method.
METHODS: Mapping[str, Callable[[ConfigFields], Method]] = {
    "compressed-tensors": CompressedTensors,
    "modelopt": ModelOpt,
    "fp8": Fp8,
    "awq": Awq,
    "gptq": Gptq,
    "auto-round": auto_round,
    "mxfp4": Mxfp4,
    "bitsandbytes": Bitsandbytes,
}


def as_blocks(source: Source) -> Source:
    """Return ``source`` with the matrices of its quantized layers in blocks; the same source if nothing is quantized.

    Raises ConvertError for an unknown method, and settings or layers that are not supported.
    """
    if "dfloat11_config" in source.config:
        raise ConvertError(f"the weights are compressed by DFloat11, which is not read: {REFUSED['dfloat11']}")
    source = replace(source, config=_settings_outside(source.config))
    settings = source.config.get(SETTINGS)
    if not settings:
        return source
    method = _read_method(settings)
    found = [
        (layer.name, tensor, matrix) for layer in _layers(source) for tensor, matrix in method.matrices(layer).items()
    ]
    if not found and method.kv_cache is None:
        raise ConvertError(
            f"the config of {source.description} says that layers are quantized with {method.description}, but none "
            "is: download it again"
        )
    used = {f"{layer}.{tensor}" for layer, _, matrix in found for tensor in matrix.stored}
    if method.kv_cache is not None:
        used |= {name for name in source.tensors if is_cache_scale(name)}
    kept = {name: info for name, info in source.tensors.items() if name not in used}
    dtype, (cache, about_cache) = _plain_dtype(kept), read_scales(source, method.kv_cache)
    weights = {f"{layer}.{tensor}": matrix for layer, tensor, matrix in found}
    return replace(
        source,
        config={key: value for key, value in source.config.items() if key != SETTINGS},
        tensors=kept | {name: TensorInfo(dtype, matrix.shape) for name, matrix in weights.items()},
        read=partial(_read, source, weights),
        blocks={name: matrix.blocks for name, matrix in weights.items() if isinstance(matrix, Matrix)},
        cache=cache,
        quantization=method.description + about_cache,
    )


def _settings_outside(config: dict[str, Any]) -> dict[str, Any]:
    """The ``config``, with the settings that only its text_config has (Kimi K2.5) outside of that."""
    text = config.get("text_config")
    if SETTINGS in config or not isinstance(text, dict) or SETTINGS not in text:
        return config
    kept = {key: value for key, value in text.items() if key != SETTINGS}
    return {**config, "text_config": kept, SETTINGS: text[SETTINGS]}


def _read_method(settings: object) -> Method:
    if not isinstance(settings, dict):
        raise ConvertError(f"{SETTINGS} is {shown(settings)}: expected an object with the key quant_method")
    fields = ConfigFields(settings, f"{SETTINGS}.", frozenset())
    fields.rename({"method": "quant_method"})  # GPTQModel writes both
    name = fields.take("quant_method")
    if isinstance(name, str) and name in REFUSED:
        raise ConvertError(f"the weights are quantized with {name}, which is not read: {REFUSED[name]}; {UNQUANTIZED}")
    if not isinstance(name, str) or name not in METHODS:
        found = "in a way without a name (quant_method)" if name is None else f"with {shown(name)}"
        raise ConvertError(f"the weights are quantized {found}, expected one of {', '.join(METHODS)}: {UNQUANTIZED}")
    method = METHODS[name](fields)
    fields.check_unread(UNQUANTIZED)
    if fields.problems:
        listed = "\n  ".join(fields.problems)
        raise ConvertError(f"the weights are quantized in a way that is not supported ({UNQUANTIZED}):\n  {listed}")
    return method


def _layers(source: Source) -> list[Layer]:
    tensors: dict[str, dict[str, TensorInfo]] = {}
    for name, info in source.tensors.items():
        layer, _, tensor = name.partition(".weight.")  # bitsandbytes gives a weight tensors of its own
        layer, tensor = (layer, f"weight.{tensor}") if tensor else (name.rpartition(".")[0], name.rpartition(".")[2])
        tensors.setdefault(layer, {})[tensor] = info
    return [Layer(name, found, partial(_load, source, name)) for name, found in tensors.items()]


def _load(source: Source, layer: str, tensor: str) -> NDArray:
    return source.read(f"{layer}.{tensor}")


def _read(source: Source, weights: Mapping[str, Matrix | ExpandedMatrix], name: str) -> NDArray:
    """Read a tensor of the source, an expanded matrix, or a part of a matrix by its name of :func:`part_name`."""
    tensor, _, part = name.rpartition("/")
    matrix = weights.get(tensor)
    if isinstance(matrix, Matrix) and name == part_name(tensor, part):
        return matrix.parts[part]()
    return weights[name].expanded() if name in weights else source.read(name)


def _plain_dtype(tensors: Mapping[str, TensorInfo]) -> str:
    """The type of all floating-point matrices, or float32 if they have several types."""
    found = {info.dtype for info in tensors.values() if len(info.shape) == 2 and info.dtype in PLAIN_DTYPES}
    return found.pop() if len(found) == 1 else "float32"
