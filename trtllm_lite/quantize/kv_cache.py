"""Quantizes keys and values to 8 bits: how a network expresses this for its KV cache, and how it is recognised.

Keys after RoPE and values pass through QuantizeLinear and DequantizeLinear, with one constant scale for keys and one
for values, before an attention appends them to its caches. The caches hold the rounded numbers, so that chunked prefill
gives the same results as prefill in one step. Keys may stay as they are: their rounding costs more accuracy than that
of values.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from trtllm_lite.common.vocabulary import KV_CACHE_DTYPES
from trtllm_lite.errors import BuildError
from trtllm_lite.network.sinks import without_sink
from trtllm_lite.quantize.activations import LARGEST, number, quantize_per_tensor
from trtllm_lite.quantize.activations import recognise as recognise_rows
from trtllm_lite.quantize.calibration.observed import Observed
from trtllm_lite.quantize.calibration.statistics import Statistics
from trtllm_lite.quantize.formats.format import made_by


@dataclass(frozen=True)
class Rounding:
    """The rounding of ``source`` to numbers of the dtype ``to`` times ``scale``."""

    source: ir.Value
    to: str
    scale: float


@dataclass(frozen=True, eq=False)
class CachedAttention:
    """An attention of a network, and the operators that append keys and values to its caches."""

    name: str
    scatters: tuple[ir.Node, ir.Node]

    @property
    def appended(self) -> tuple[ir.Value, ir.Value]:
        """New keys and values [batch, kv_heads, seq, head_dim]."""
        key, value = (scatter.inputs[1] for scatter in self.scatters)
        assert key is not None
        assert value is not None
        return key, value

    @property
    def roundings(self) -> tuple[Rounding | None, Rounding | None]:
        """How the network rounds new keys, and new values; None if it does not."""
        key, value = self.appended
        return recognise(key), recognise(value)

    @property
    def num_features(self) -> int:
        """Elements of a token's keys in all heads; values have as many."""
        shape = self.appended[0].shape
        assert shape is not None
        heads, head_dim = shape[1], shape[3]
        assert isinstance(heads, int)
        assert isinstance(head_dim, int)
        return heads * head_dim


def recognise(value: ir.Value) -> Rounding | None:
    """The rounding of new keys or values that makes ``value``, if the network rounds them with one scale."""
    rows = recognise_rows(value)
    scale = None if rows is None else number(rows.scale)
    return None if rows is None or scale is None else Rounding(rows.source, rows.to, scale)


def find_attentions(graph: ir.Graph) -> list[CachedAttention]:
    """Every attention that updates caches, in the order of the graph; later ones that read them are left out."""
    found: dict[ir.Node, CachedAttention] = {}
    for node in graph:
        if node.op_type == "Attention":
            key, value = (made_by(without_sink(node.inputs[position]), "TensorScatter") for position in (1, 2))
            if key is not None and value is not None:
                found.setdefault(key, CachedAttention(str(node.name), (key, value)))
    return list(found.values())


def kv_cache_dtype_of(graph: ir.Graph, *, of_values: bool = False) -> str | None:
    """The type, as users name it, to which the network rounds all keys and values; None if some are not rounded.

    ``of_values``: only values count.
    """
    roundings = [attention.roundings[int(of_values) :] for attention in find_attentions(graph)]
    found = {None if rounding is None else rounding.to for layer in roundings for rounding in layer}
    return next((name for name, dtype in KV_CACHE_DTYPES.items() if found == {dtype}), None)


def with_plain_kv_cache(network: ir.Model, *, of_keys: bool = False) -> ir.Model:
    """``network`` without the rounding of keys and values, or of keys alone; the same network if there is none."""

    def roundings(graph: ir.Graph) -> list[tuple[ir.Node, Rounding | None]]:
        layers = [list(zip(layer.scatters, layer.roundings, strict=True)) for layer in find_attentions(graph)]
        return [one for layer in layers for one in layer[: 1 if of_keys else 2]]

    if not any(rounding for _, rounding in roundings(network.graph)):
        return network
    plain = network.clone()
    for scatter, rounding in roundings(plain.graph):
        if rounding is not None:
            scatter.replace_input_with(1, rounding.source)
    return plain


def keys_and_values(attentions: Sequence[CachedAttention]) -> dict[str, Observed]:
    """The inputs that calibration observes: for each attention rows of keys, then values, before rounding."""
    return {attention.name: Observed(2 * attention.num_features, (attention.name,)) for attention in attentions}


def calibrated_scales(
    attention: CachedAttention,
    to: str,
    statistics: Statistics,
    value_factors: Callable[[], NDArray[np.float32]],
    *,
    of_keys: bool,
) -> tuple[float | None, float]:
    """The scales by which the largest magnitudes of keys and of values become the largest number of ``to``.

    Keys have none unless ``of_keys``. The statistics of values are divided by ``value_factors``, which schemes move
    into other matrices. Raises BuildError if all numbers of a kind are zero.
    """
    if statistics.abs_max.size == 1:  # the statistics are made up
        scale = float(statistics.abs_max[0]) / LARGEST[to]
        return scale if of_keys else None, scale
    keys, values = np.split(statistics.abs_max, 2)
    largest = float(np.max(keys)), float(np.max(values / value_factors()))
    if not all(largest[0 if of_keys else 1 :]):
        what = "keys or its values" if of_keys else "values"
        raise BuildError(
            f"{attention.name}: its {what} are zero throughout the calibration text, and their largest magnitude is "
            "to become a scale: calibrate with a longer text, or pass kv_cache_scale"
        )
    return largest[0] / LARGEST[to] if of_keys else None, largest[1] / LARGEST[to]


Scales = Callable[[CachedAttention], tuple[float | None, float]]  # scale of keys (None: they stay), and of values


def round_kv_cache(graph: ir.Graph, attentions: Sequence[CachedAttention], to: str, scales: Scales) -> None:
    """Let ``attentions`` of ``graph`` store what has a scale as numbers of the dtype ``to``.

    Raises BuildError if an attention rounds its keys or values already.
    """
    for attention in attentions:
        if attention.roundings != (None, None):
            raise BuildError(
                f"{attention.name} stores rounded keys or values already: leave kv_cache_dtype out, or pass the "
                "checkpoint that this one was made of"
            )
        for scatter, new, scale in zip(attention.scatters, attention.appended, scales(attention), strict=True):
            if scale is not None:
                scatter.replace_input_with(1, quantize_per_tensor(graph, new, to, scale))
