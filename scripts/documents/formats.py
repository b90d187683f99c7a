"""Writes the reference of dtypes, weight formats and schemes of quantization from the tables of the code."""

import importlib
from types import SimpleNamespace
from typing import Any

from gguf import GGMLQuantizationType

from documents.variants import markdown
from trtllm_lite.common.vocabulary import DTYPES
from trtllm_lite.convert.gguf.blocks import kind_of
from trtllm_lite.convert.quantized import METHODS
from trtllm_lite.convert.quantized.refused import REFUSED
from trtllm_lite.quantize.formats import FORMATS
from trtllm_lite.quantize.schemes import SCHEMES, Needs

SCHEME_TITLES = ("`--qformat`", "what it is", "a scale for each", "calibration", "scales activations", "experts")
CALIBRATION = {Needs.NOTHING: "none", Needs.CHANNELS: "magnitudes of channels", Needs.GRAM: "outer products (GPTQ)"}


def dtypes_table() -> str:
    """A row for each dtype of engines."""
    formats = {dtype.name.lower(): entry.name for entry in FORMATS for dtype in entry.weight_dtypes}
    rows = []
    for name, dtype in DTYPES.items():
        used = formats.get(dtype.onnx.lower(), "")
        scales = "with scales" if dtype.scaled else ""
        rows.append([f"`{name}`", str(dtype.bits), f"`{dtype.stored}`", f"`{dtype.onnx}`", scales, used])
    return markdown(("dtype", "bits", "in safetensors", "in ONNX", "", "format of weights"), rows) + "\n"


def schemes_table() -> str:
    """A row for each scheme of ``--qformat``."""
    rows = []
    for name, scheme in SCHEMES.items():
        groups = "`--group_size` weights of a row" if scheme.in_groups else "output feature"
        folds = "yes" if scheme.folds else "no"
        rows.append([f"`{name}`", _title(scheme), groups, CALIBRATION[scheme.needs], folds, scheme.experts.name])
    return markdown(SCHEME_TITLES, rows) + "\n"


def checkpoints_table() -> str:
    """A row for each quantization method of Hugging Face checkpoints."""
    rows = []
    for name, method in METHODS.items():
        module = importlib.import_module(method.__module__)
        first = " ".join((module.__doc__ or "").split("\n\n")[0].split())
        rows.append([f"`{name}`", first.replace("``", "`").rstrip(".")])
    return markdown(("`quant_method`", "what is read"), rows) + "\n"


def refused_table() -> str:
    """A row for each quantization method that is refused by name, with the reason."""
    rows = [[f"`{name}`", why] for name, why in REFUSED.items()]
    return markdown(("`quant_method`", "why it is not read"), rows) + "\n"


def gguf_table() -> str:
    """A row for each type of GGUF whose blocks engines store unchanged."""
    rows = []
    for found in GGMLQuantizationType:
        kind = kind_of(SimpleNamespace(tensor_type=found, shape=(1, 1)))
        if kind is not None:
            blocks = kind.blocks
            parts = [f"`{blocks.dtype_of(part)}`" for part in ("weight", "weight_scale")]
            rows.append([f"`{found.name}`", *parts, str(blocks.block_size), "yes" if blocks.offset_dtype else "no"])
    return markdown(("type", "elements", "scales", "elements of a scale", "offsets"), rows) + "\n"


def _title(scheme: Any) -> str:
    """The first sentence of the class's docstring."""
    return " ".join((type(scheme).__doc__ or "").split("\n\n")[0].split()).partition(". ")[0].rstrip(".")
