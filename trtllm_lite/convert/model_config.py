"""Makes a network from a config.json alone: a model's shape, for engines and plans that need no weights."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir
from numpy.typing import NDArray

from trtllm_lite.common.foreign_files import read_foreign
from trtllm_lite.common.vocabulary import MAX_JSON_BYTES, PLAIN_DTYPES
from trtllm_lite.convert.checkpoint import describe_model
from trtllm_lite.convert.mapping import MappedModel, read_model
from trtllm_lite.convert.quantized import SETTINGS
from trtllm_lite.convert.quantized.mxfp4 import Mxfp4, mxfp4_blocks
from trtllm_lite.convert.sources.source import Source
from trtllm_lite.convert.sources.text_model import as_text_model
from trtllm_lite.errors import ConvertError, shown
from trtllm_lite.network.config import WEIGHTS_FILE, ModelConfig
from trtllm_lite.network.dtypes import ONNX
from trtllm_lite.network.model import network_of


@dataclass(frozen=True)
class WeightlessModel:
    """A network without weights: the initializers of ``network`` point into a file that does not exist."""

    config: ModelConfig
    network: ir.Model


def open_model_config(path: Path) -> WeightlessModel:
    """Make the network that a Hugging Face ``config.json`` describes, in the type that it names (float32 if none).

    Experts are in MXFP4 if the config says so; other quantized models are refused, as their config does not describe
    the tensors. Raises ConvertError.
    """
    source = _source(Path(path))
    settings = source.config.get(SETTINGS)
    in_fp4 = isinstance(settings, dict) and settings.get("quant_method") == "mxfp4"
    if settings and not in_fp4:
        method = settings.get("quant_method") if isinstance(settings, dict) else settings
        raise ConvertError(
            f"{path} is of a model that is quantized ({shown(method)}), and tells nothing of how its tensors are "
            f"stored: pass a checkpoint that `trtllm-lite convert` made of the model, or take {SETTINGS} out of the "
            "file and build with --qformat"
        )
    if in_fp4:
        source = replace(source, config={key: value for key, value in source.config.items() if key != SETTINGS})
    dtype = source.config.get("dtype") or source.config.get("torch_dtype") or "float32"
    if dtype not in PLAIN_DTYPES:
        raise ConvertError(f"expected the dtype of {path} to be one of {', '.join(PLAIN_DTYPES)}, found {shown(dtype)}")
    architecture, family, model = read_model(source)
    network = network_of(model, ONNX[dtype])
    if in_fp4:
        sources = (source for weight in network.weights for source in weight.expression.sources())
        network = network_of(model, ONNX[dtype], mxfp4_blocks(sources))
    quantization = Mxfp4.description if in_fp4 else ""
    mapped = MappedModel(source, architecture, family, model, network, dtype, quantization)
    tensors = {
        weight.name: ir.ExternalTensor(
            WEIGHTS_FILE, None, None, weight.dtype, shape=ir.Shape(weight.shape), name=weight.name
        )
        for weight in network.weights
    }
    return WeightlessModel(describe_model(mapped), mapped.bind(tensors))


def _source(path: Path) -> Source:
    try:
        config = json.loads(read_foreign(path, MAX_JSON_BYTES))
    except OSError as error:
        raise ConvertError(f"cannot read the model config {path}: {error.strerror}: check the path") from error
    except (ValueError, RecursionError) as error:
        raise ConvertError(f"expected {path} to be a model's config.json, but: {error}") from error
    if not isinstance(config, dict):
        raise ConvertError(f"expected {path} to be a model's config.json, found a {type(config).__name__}")
    return as_text_model(Source(str(path), config, {}, {}, _no_tensor, None, {}))


def _no_tensor(name: str) -> NDArray:
    raise ConvertError(f"a model config has no tensors, {name} was asked for")
