"""Moves factors of channels between products and what makes their input; the network computes the same.

A product's columns are multiplied with the factors, and what makes x divides by them: the weight and bias of a norm, or
the rows of the projection that each channel comes from. Equation 3 of SmoothQuant (arXiv 2211.10438).
"""

import onnx_ir as ir

from trtllm_lite.quantize.formats.format import initializer, made_by
from trtllm_lite.quantize.products import Product
from trtllm_lite.quantize.schemes.workpiece import Factors, Workpiece

_NORMS = ("RMSNormalization", "LayerNormalization")


class NotFoldableError(Exception):
    """Why the channels of an input cannot be scaled, in words."""


def fold(work: Workpiece, x: ir.Value, factors: Factors) -> None:
    """Multiply the columns of all products that read ``x``, and divide ``x``. Raises NotFoldableError."""
    products = work.readers(x)
    if products is None:
        raise NotFoldableError("something else reads its input, too")
    node = x.producer()
    assert node is not None
    if node.op_type in _NORMS:
        _fold_norm(work, node, factors)
    elif node.op_type == "Mul":
        _fold_linear(work, _linear_factor(work, node), factors)
    elif node.op_type == "Reshape":
        _fold_linear(work, _values(work, node, products[0]), factors)
    else:
        raise NotFoldableError(f"its input comes from {node.op_type}, which takes no factors")
    for product in products:
        work.scale_columns(product, factors)


def _fold_norm(work: Workpiece, norm: ir.Node, factors: Factors) -> None:
    vectors = [position for position, value in enumerate(norm.inputs) if position > 0 and value is not None]
    if any(initializer(norm.inputs[position]) is None for position in vectors):
        raise NotFoldableError("the weight of its norm is no constant")
    for position in vectors:
        work.divide_vector(norm, position, factors)


def _fold_linear(work: Workpiece, found: tuple[Product, ir.Node | None], factors: Factors) -> None:
    """Divide the rows of a product, and the elements of the bias behind it."""
    product, bias = found
    work.divide_rows(product, factors)
    if bias is not None:
        position = next(i for i, value in enumerate(bias.inputs) if initializer(value) is not None)
        work.divide_vector(bias, position, factors)


def _linear_factor(work: Workpiece, mul: ir.Node) -> tuple[Product, ir.Node | None]:
    """The projection that a gate multiplies."""
    for value in mul.inputs:
        found = _linear(work, value)
        if found is not None:
            return found
    raise NotFoldableError("neither factor of its input comes straight from a projection")


def _values(work: Workpiece, merge: ir.Node, reader: Product) -> tuple[Product, ir.Node | None]:
    """The projection of the values whose means an attention makes, if each head has values of its own."""
    transpose = made_by(merge.inputs[0], "Transpose")
    attention = None if transpose is None else made_by(transpose.inputs[0], "Attention")
    cache = None if attention is None else made_by(attention.inputs[2], "TensorScatter")
    heads = None if cache is None else made_by(cache.inputs[1], "Transpose")
    split = None if heads is None else made_by(heads.inputs[0], "Reshape")
    found = None if split is None else _linear(work, split.inputs[0])
    if found is None:
        raise NotFoldableError("its input does not come from an attention over projected values")
    if found[0].matrix.shape[0] != reader.in_features:
        raise NotFoldableError("several heads share the values that its input is made of")
    return found


def _linear(work: Workpiece, value: ir.Value | None) -> tuple[Product, ir.Node | None] | None:
    """The product, and the addition of a bias behind it, that make ``value`` for one reader alone."""
    if value is None or len(value.uses()) != 1 or value.is_graph_output():
        return None
    bias = made_by(value, "Add")
    if bias is None:
        product = work.product_of(value)
        return None if product is None else (product, None)
    others = [source for source in bias.inputs if initializer(source) is None]
    if len(others) != 1 or others[0] is None or len(others[0].uses()) != 1:
        return None
    product = work.product_of(others[0])
    return None if product is None else (product, bias)
