"""compressed-tensors (``quant_method: compressed-tensors``), as llm-compressor and others write it.

https://github.com/vllm-project/compressed-tensors, src/compressed_tensors/config and quantization. The settings are
groups of layers, each with the number formats of its weights and activations.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trtllm_lite.common.vocabulary import PLAIN_DTYPES
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.quantized.bytes import bytes_by_row, fp8_in_tiles
from trtllm_lite.convert.quantized.fp4 import mxfp4, nvfp4
from trtllm_lite.convert.quantized.fp8 import is_tile
from trtllm_lite.convert.quantized.groups import Groups
from trtllm_lite.convert.quantized.kv_cache import KvCache
from trtllm_lite.convert.quantized.layer import Layer, Matrix, static_rounding
from trtllm_lite.convert.quantized.method import UNQUANTIZED, LinearMethod
from trtllm_lite.convert.quantized.words import WORD_BITS, unpacked
from trtllm_lite.errors import shown
from trtllm_lite.network.blocks import Rounding

_ANY_LAYER = "Linear"
_BYTES = {"float": "float8_e4m3fn", "int": "int8"}


@dataclass(frozen=True)
class Numbers:
    """A number format (a QuantizationArgs) of weights or of activations."""

    kind: str
    num_bits: int
    strategy: str
    symmetric: bool
    dynamic: bool
    tile: tuple[int, int] | None

    @classmethod
    def read(cls, fields: ConfigFields) -> "Numbers":
        """Take all settings of one object."""
        for key in ("observer", "observer_kwargs", "scale_dtype", "zp_dtype", "group_size"):
            fields.take(key)  # settings that tell how scales were found, or repeat what the shapes of tensors show
        # With "group", or true, the columns of a group may lie apart; the tensors show that, too.
        fields.expect("actorder", "weight", "static", "group", "dynamic", True, False)
        tile = fields.take("block_structure")
        if tile is not None and not is_tile(tile):
            fields.problem("block_structure", f"expected two positive numbers, found {shown(tile)}")
            tile = None
        numbers = cls(
            kind=str(fields.take("type")),
            num_bits=fields.integer("num_bits"),
            strategy=str(fields.take("strategy")),
            symmetric=fields.flag("symmetric", True),
            dynamic=fields.take("dynamic") in (True, "local"),  # local: a scale for each group of a token
            tile=None if tile is None else (tile[0], tile[1]),
        )
        fields.check_unread(UNQUANTIZED)
        return numbers

    def __str__(self) -> str:
        zeros = "symmetric" if self.symmetric else "asymmetric"
        return f"{zeros} {self.kind}{self.num_bits} by {self.strategy}{', dynamic' if self.dynamic else ''}"


@dataclass(frozen=True)
class Group:
    """A group of layers, which ``targets`` name, and the layout of their tensors."""

    targets: tuple[str, ...]
    layout: str
    weights: Numbers
    activations: Numbers | None

    @property
    def leaves_activations(self) -> bool:
        """Whether activations stay unquantized although the source quantizes them, in groups within a token."""
        return self.activations is not None and self.activations.strategy in ("group", "tensor_group")

    def has(self, layer: str) -> bool:
        """Whether a target names the layer."""
        return any(_names(target, layer) for target in self.targets)


class CompressedTensors(LinearMethod):
    """Layers by groups: the first group that names a layer counts, else the first that targets all linear layers."""

    def __init__(self, fields: ConfigFields) -> None:
        """Take the settings; an unsupported value becomes a problem of ``fields``."""
        for key in ("ignore", "quantization_status", "global_compression_ratio", "version"):
            fields.take(key)  # ignored layers have no scales
        _expect_dense(fields)
        layout, groups = fields.take("format"), fields.take("config_groups")
        self.kv_cache = KvCache.read(fields, "kv_cache_scheme")
        if not isinstance(groups, dict) or not (groups or self.kv_cache):
            fields.problem("config_groups", f"expected groups of layers, found {shown(groups)}")
            groups = {}
        self._groups = [_read_group(fields, name, entry, layout) for name, entry in groups.items()]
        layouts = dict.fromkeys(group.layout for group in self._groups)
        weights_only = ", weights only" if any(group.leaves_activations for group in self._groups) else ""
        self.description = f"compressed-tensors {', '.join(layouts) or layout}{weights_only}"

    def matrix(self, layer: Layer) -> Matrix:
        """Implements :meth:`LinearMethod.matrix`."""
        named = [group for group in self._groups if group.has(layer.name)]
        named += [group for group in self._groups if _ANY_LAYER in group.targets]
        if not named:
            raise layer.error("no group of quantization_config names the layer, which has scales: let one name it")
        group = named[0]
        read = _LAYOUTS.get(group.layout)
        matrix = None if read is None else read(layer, group)
        if matrix is None:
            raise layer.error(
                f"weights are stored as {group.weights} in the format {shown(group.layout)}, and activations as "
                f"{group.activations or 'they are'}, which is not supported: {UNQUANTIZED}"
            )
        return matrix


def _expect_dense(fields: ConfigFields) -> None:
    """Record a problem if the tensors leave out weights that are zero."""
    sparsity = fields.take("sparsity_config")
    if sparsity and not (isinstance(sparsity, dict) and sparsity.get("format", "dense") == "dense"):
        found = sparsity.get("format") if isinstance(sparsity, dict) else sparsity
        fields.problem("sparsity_config", f"expected the format 'dense', found {shown(found)}, which is not supported")


def _read_group(fields: ConfigFields, name: str, entry: Any, layout: Any) -> Group:
    path = f"config_groups.{name}"
    values = entry if isinstance(entry, dict) else {}
    targets = values.get("targets")
    if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
        fields.problem(f"{path}.targets", f"expected names of layers, found {shown(targets)}")
        targets = []
    for target in targets:
        if not _is_safe(target):
            fields.problem(f"{path}.targets", f"{shown(target)} is no regular expression without repeated groups")
    if values.get("output_activations"):
        fields.problem(f"{path}.output_activations", "quantized outputs of layers are not supported")
    kept = tuple(target for target in targets if _is_safe(target))
    weights = _read_numbers(fields, f"{path}.weights", values.get("weights"))
    activations = values.get("input_activations")
    rounded = None if activations is None else _read_numbers(fields, f"{path}.input_activations", activations)
    return Group(kept, str(values.get("format") or layout), weights, rounded)


def _read_numbers(fields: ConfigFields, path: str, values: Any) -> Numbers:
    if not isinstance(values, dict):
        fields.problem(path, f"expected how numbers are stored, found {shown(values)}")
        values = {"num_bits": 1}
    nested = ConfigFields(values, f"{path}.", frozenset())
    numbers = Numbers.read(nested)
    fields.problems += nested.problems
    return numbers


def _is_safe(target: str) -> bool:
    """Whether a target is a name, or a regular expression that cannot take exponential time."""
    if not target.startswith("re:"):
        return True
    try:
        re.compile(target[3:])
    except (re.error, RecursionError, OverflowError):
        return False
    return re.search(r"\)[*+{?]", target) is None


def _names(target: str, layer: str) -> bool:
    return re.match(target[3:], layer) is not None if target.startswith("re:") else target == layer


def _nvfp4(layer: Layer, group: Group) -> Matrix | None:
    is_usual = (group.weights.kind, group.weights.num_bits, group.weights.symmetric) == ("float", 4, True)
    return nvfp4(layer, "weight_packed", "weight_global_scale", divides=True) if is_usual else None


def _mxfp4(layer: Layer, group: Group) -> Matrix | None:
    is_usual = (group.weights.kind, group.weights.num_bits, group.weights.symmetric) == ("float", 4, True)
    return mxfp4(layer, "weight_packed") if is_usual else None


def _bytes(layer: Layer, group: Group) -> Matrix | None:
    """Read a byte for each element, and a scale for the matrix, for each row or for each tile."""
    weights, activations = group.weights, group.activations
    if (weights.kind, weights.num_bits, weights.strategy) == ("float", 8, "block") and weights.tile is not None:
        return fp8_in_tiles(layer, "weight_scale", weights.tile)
    dtype = _BYTES.get(weights.kind)
    usual = weights.num_bits == 8 and weights.symmetric and weights.strategy in ("tensor", "channel")
    if dtype is None or not usual:
        return None
    if activations is None:
        return bytes_by_row(layer, dtype)
    if (activations.kind, activations.num_bits, activations.symmetric) != (weights.kind, 8, True):
        return None
    if activations.dynamic:
        return bytes_by_row(layer, dtype, Rounding(dtype)) if activations.strategy == "token" else None
    return bytes_by_row(layer, dtype, static_rounding(layer, dtype)) if activations.strategy == "tensor" else None


def _packed(layer: Layer, group: Group) -> Matrix | None:
    """Read ``weight_packed`` int32 [out, in / n] with n = 32 / bits elements per word, and zero points [out / n,
    groups]; half of the range was added to both before they were stored."""
    weights = group.weights
    usual = weights.kind == "int" and weights.num_bits in (4, 8) and weights.strategy in ("channel", "group")
    if not usual or group.activations is not None:
        return None
    bits, per_word = weights.num_bits, WORD_BITS // weights.num_bits
    layer.find("weight_shape", ("int64", "int32"), 1)
    layer.expect("weight_shape", (2,))
    rows, depth = (int(extent) for extent in layer.load("weight_shape"))
    layer.expect("weight_packed", (rows, -(-depth // per_word)), "int32")
    scale = layer.find("weight_scale", PLAIN_DTYPES, 2)
    count = scale.shape[1]
    layer.expect("weight_scale", (rows, count))
    if not weights.symmetric:
        layer.expect("weight_zero_point", (-(-rows // per_word), count), "int32")
    groups = Groups(
        (rows, depth),
        bits,
        count,
        lambda: np.ascontiguousarray(unpacked(layer.load("weight_packed"), bits)[:, :depth]),
        lambda: layer.load("weight_scale"),
        scale.dtype,
        None
        if weights.symmetric
        else lambda: np.ascontiguousarray(unpacked(layer.load("weight_zero_point").T, bits)[:, :rows].T),
    )
    matrix = groups.matrix(layer, "weight_packed", "weight_scale", "weight_zero_point", "weight_shape")
    return matrix.with_groups(layer, "weight_g_idx", count)


_LAYOUTS: Mapping[str, Callable[[Layer, Group], Matrix | None]] = {
    "float-quantized": _bytes,
    "int-quantized": _bytes,
    "naive-quantized": _bytes,
    "pack-quantized": _packed,
    "nvfp4-pack-quantized": _nvfp4,
    "mxfp4-pack-quantized": _mxfp4,
}
