"""Moves factors of channels from inputs of products into earlier layers; the network computes the same.

A product's columns are multiplied by the factors, and the layer that makes x divides by them: in the weight and bias of
a norm, or in the rows of the projection that each channel comes from (equation 3 of SmoothQuant, arXiv 2211.10438).
Where several query heads share a value head, channels that come from one row of its projection share one factor.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from trtllm_lite.network.sinks import without_sink
from trtllm_lite.quantize.formats.format import initializer, made_by
from trtllm_lite.quantize.products import Product
from trtllm_lite.quantize.schemes.workpiece import Factors, Workpiece

_NORMS = ("RMSNormalization", "LayerNormalization")


class NotFoldableError(Exception):
    """The channels of an input cannot be scaled; the message says why."""


@dataclass(frozen=True)
class Source:
    """The layer that makes the channels of an input of ``products``.

    Channel i comes from element ``owners[i]`` of the layer's output, and channels of one owner share a factor.
    ``divide`` divides the elements of the output by their factors.
    """

    products: list[Product]
    owners: NDArray[np.int64]
    divide: Callable[[Factors], None]

    def shared(self, vector: NDArray[np.float32]) -> NDArray[np.float32]:
        """For each channel, the largest element of ``vector`` among the channels of its owner."""
        largest = np.full(int(np.max(self.owners)) + 1, -np.inf, vector.dtype)
        np.maximum.at(largest, self.owners, vector)
        found: NDArray[np.float32] = largest[self.owners]
        return found


def fold(work: Workpiece, source: Source, factors: Factors) -> None:
    """Multiply the columns of all products that read an input, and divide the input by the same factors."""
    _, first = np.unique(source.owners, return_index=True)
    source.divide(lambda: factors()[first])
    for product in source.products:
        work.scale_columns(product, factors)


def source_of(work: Workpiece, x: ir.Value) -> Source:
    """The layer that makes ``x``, if factors of its channels can be moved there. Raises NotFoldableError."""
    products = work.readers(x)
    if products is None:
        raise NotFoldableError("something else reads its input, too")
    node = x.producer()
    assert node is not None
    own = np.arange(products[0].in_features)
    if node.op_type in _NORMS:
        return Source(products, own, _norm(work, node))
    if node.op_type == "Mul":
        return Source(products, own, _division(work, _linear_factor(work, node)))
    if node.op_type == "Reshape":
        found, owners = _values(work, node)
        return Source(products, owners, _division(work, found))
    raise NotFoldableError(f"its input comes from {node.op_type}, which takes no factors")


def _norm(work: Workpiece, norm: ir.Node) -> Callable[[Factors], None]:
    vectors = [position for position, value in enumerate(norm.inputs) if position > 0 and value is not None]
    if any(initializer(norm.inputs[position]) is None for position in vectors):
        raise NotFoldableError("the weight of its norm is no constant")

    def divide(factors: Factors) -> None:
        for position in vectors:
            work.divide_vector(norm, position, factors)

    return divide


def _division(work: Workpiece, found: tuple[Product, ir.Node | None]) -> Callable[[Factors], None]:
    """A function that divides the rows of a product, and the elements of the bias after it."""
    product, bias = found

    def divide(factors: Factors) -> None:
        work.divide_rows(product, factors)
        if bias is not None:
            position = next(i for i, value in enumerate(bias.inputs) if initializer(value) is not None)
            work.divide_vector(bias, position, factors)

    return divide


def _linear_factor(work: Workpiece, mul: ir.Node) -> tuple[Product, ir.Node | None]:
    """The projection that a gate multiplies."""
    for value in mul.inputs:
        found = _linear(work, value)
        if found is not None:
            return found
    raise NotFoldableError("neither factor of its input comes straight from a projection")


def _values(work: Workpiece, merge: ir.Node) -> tuple[tuple[Product, ir.Node | None], NDArray[np.int64]]:
    """The projection of values that an attention averages, and the row that each channel comes from."""
    transpose = made_by(merge.inputs[0], "Transpose")
    attention = None if transpose is None else made_by(transpose.inputs[0], "Attention")
    cache = None if attention is None else made_by(without_sink(attention.inputs[2]), "TensorScatter")
    heads = None if cache is None else made_by(cache.inputs[1], "Transpose")
    split = None if heads is None else made_by(heads.inputs[0], "Reshape")
    found = None if split is None else _linear(work, split.inputs[0])
    query = None if attention is None else attention.inputs[0]
    if found is None or heads is None or query is None or query.shape is None or heads.outputs[0].shape is None:
        raise NotFoldableError("its input does not come from an attention over projected values")
    num_heads, num_kv_heads, head_dim = query.shape[1], heads.outputs[0].shape[1], heads.outputs[0].shape[3]
    if not isinstance(num_heads, int) or not isinstance(num_kv_heads, int) or not isinstance(head_dim, int):
        raise NotFoldableError("the attention before it has no static number of heads")
    rows = np.arange(num_kv_heads * head_dim).reshape(num_kv_heads, head_dim)
    return found, np.repeat(rows, num_heads // num_kv_heads, axis=0).reshape(-1)


def value_factors(work: Workpiece, values: ir.Value) -> NDArray[np.float32]:
    """The factors by which folding divided ``values`` [batch, kv_heads, seq, head_dim], in the order of heads.

    All factors are 1 if the values do not come straight from a projection, as nothing is folded then.
    """
    heads = made_by(values, "Transpose")
    split = None if heads is None else made_by(heads.inputs[0], "Reshape")
    found = None if split is None else _linear(work, split.inputs[0])
    return np.ones(1, np.float32) if found is None else work.rows(found[0])


def _linear(work: Workpiece, value: ir.Value | None) -> tuple[Product, ir.Node | None] | None:
    """The product, and the Add of a bias after it, that make ``value`` for a single reader."""
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
