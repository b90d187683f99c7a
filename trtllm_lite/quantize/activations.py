"""Quantizes activations to 8 bits: how a network says that a product reads quantized rows, and how to recognise it.

In a network both forms are QuantizeLinear and DequantizeLinear between the activations and the products that read them:
with one constant scale for the whole tensor, which calibration finds, or with a scale for each token, which standard
operators compute from the token's largest magnitude.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from trtllm_lite.network.blocks import AddOperator
from trtllm_lite.network.dtypes import DTYPE_NAMES
from trtllm_lite.network.rounding import LARGEST, round_per_tensor, round_per_token
from trtllm_lite.network.tensors import add_initializer
from trtllm_lite.quantize.formats.format import initializer, made_by
from trtllm_lite.quantize.insertion import adder


@dataclass(frozen=True)
class QuantizedRows:
    """Rows of ``source`` rounded to the numbers of the dtype ``to``.

    ``scale`` is the constant scale of all rows. Without it, the scale of a row is its largest magnitude times
    ``scale_factor``, and at least ``min_scale``.
    """

    source: ir.Value
    to: str
    scale: ir.Value | None
    scale_factor: float = 0.0
    min_scale: float = 0.0


def quantize_per_tensor(graph: ir.Graph, x: ir.Value, to: str, scale: float) -> ir.Value:
    """Let the network round ``x`` to ``to``, with one ``scale``; returns the float32 value for products to read."""
    constant = _constant(graph, f"{x.name}.scale", np.array(scale, np.float32))
    return round_per_tensor(_adder(graph, x), x, to, constant)


def quantize_per_token(graph: ir.Graph, x: ir.Value, to: str) -> ir.Value:
    """Like :func:`quantize_per_tensor`, but a token's scale maps its largest magnitude to the largest of ``to``."""
    features = None if x.shape is None else x.shape[-1]
    assert isinstance(features, int)
    return round_per_token(_adder(graph, x), partial(_constant, graph), x, to, features)


def recognise(value: ir.Value | None) -> QuantizedRows | None:
    """The rounding that makes ``value``, if the network rounds activations there in one of the two ways."""
    dequantize = made_by(value, "DequantizeLinear")
    quantize = None if dequantize is None else made_by(dequantize.inputs[0], "QuantizeLinear")
    if dequantize is None or quantize is None or quantize.inputs[0] is None or not _are_inverse(quantize, dequantize):
        return None
    source, scale, to = quantize.inputs[0], quantize.inputs[1], quantize.outputs[0].dtype
    name = DTYPE_NAMES.get(to) if to is not None else None
    if name not in LARGEST or source.dtype != ir.DataType.FLOAT or source.is_initializer():
        return None
    if number(scale) is not None:
        return QuantizedRows(source, name, scale)
    return _per_token(quantize, source, name)


def _per_token(quantize: ir.Node, source: ir.Value, to: str) -> QuantizedRows | None:
    maximum = made_by(quantize.inputs[1], "Max")
    product = None if maximum is None else made_by(maximum.inputs[0], "Mul")
    largest = None if product is None else made_by(product.inputs[0], "ReduceMax")
    magnitude = None if largest is None else made_by(largest.inputs[0], "Abs")
    if maximum is None or product is None or largest is None or magnitude is None or len(maximum.inputs) != 2:
        return None
    factor, least, axis = number(product.inputs[1]), number(maximum.inputs[1]), number(largest.inputs[1])
    features = None if source.shape is None else source.shape[-1]
    blocks = (quantize.attributes.get_int("axis", 1), quantize.attributes.get_int("block_size", 0))
    if magnitude.inputs[0] is not source or axis != -1 or blocks != (-1, features) or factor is None or least is None:
        return None
    return QuantizedRows(source, to, None, factor, least)


def _are_inverse(quantize: ir.Node, dequantize: ir.Node) -> bool:
    """Whether both have the same scale, axis and blocks, and a zero point that is 0 or absent."""
    if quantize.inputs[1] is not dequantize.inputs[1]:
        return False
    zero_points = [node.inputs[2] for node in (quantize, dequantize) if len(node.inputs) > 2]
    if any(value is not None and number(value) != 0 for value in zero_points):
        return False
    defaults = {"axis": 1, "block_size": 0}
    return all(
        quantize.attributes.get_int(name, default) == dequantize.attributes.get_int(name, default)
        for name, default in defaults.items()
    )


def number(value: ir.Value | None) -> float | None:
    """The only element of a constant, or None."""
    constant = initializer(value)
    tensor = None if constant is None else constant.const_value
    if tensor is None or tensor.size != 1:
        return None
    return float(tensor.numpy().reshape(()))


def _adder(graph: ir.Graph, x: ir.Value) -> AddOperator:
    """A function that adds operators under the name of ``x``, in front of its readers."""
    readers = {use.node for use in x.uses()}
    return adder(graph, next(node for node in graph if node in readers), str(x.name))


def _constant(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    """The constant of that name, which has the same value wherever it is used."""
    return graph.initializers.get(name) or add_initializer(graph, name, ir.tensor(array, name=name))
