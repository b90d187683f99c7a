"""Holds a network while schemes change it: factors of its matrices, their formats, and their inputs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from trtllm_lite.errors import BuildError
from trtllm_lite.network.tensors import add_initializer, computed, extents
from trtllm_lite.plugins.packing import WORD
from trtllm_lite.quantize.activations import quantize_per_tensor, quantize_per_token
from trtllm_lite.quantize.calibration.statistics import Statistics
from trtllm_lite.quantize.formats import QuantizedFormat
from trtllm_lite.quantize.formats.format import Rows, initializer, made_by
from trtllm_lite.quantize.products import Product, by_input, find_products

# A positive float32 vector, computed when it is read.
Factors = Callable[[], NDArray[np.float32]]


@dataclass(frozen=True)
class Decision:
    """A scheme's decision at ``site``, a path in the model, for people; ``kind`` is a plural noun for its sort, such
    as ``inputs``."""

    site: str
    text: str
    kind: str


@dataclass(frozen=True)
class _Rescaled(Rows):
    """``stored`` [out, in] in float32 with rows divided by ``divisors`` [out] and columns multiplied by ``factors``."""

    name: str
    stored: np.ndarray
    divisors: list[NDArray[np.float32]]
    factors: list[NDArray[np.float32]]

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, some: slice) -> NDArray[np.float32]:
        values = self.stored[some].astype(np.float32)
        if not (finite := np.isfinite(values).all(1)).all():
            row = range(len(self))[some][int(np.argmin(finite))]
            raise BuildError(
                f"{self.name}: the weights of output feature {row} are not finite, which no scheme stores: the "
                "checkpoint is damaged; get the model again, and convert it again"
            )
        for divisors in self.divisors:
            values /= divisors[some, None]
        for factors in self.factors:
            values *= factors
        return values


class Workpiece:
    """``graph`` is changed in place; ``statistics`` returns those of an input by its name in :func:`by_input`;
    ``group_size`` neighbouring weights of a row share a scale in 4-bit schemes.

    Factors of a matrix's rows and columns may be added even after its format is chosen: they are applied when the
    matrix is read.
    """

    def __init__(self, graph: ir.Graph, statistics: Callable[[str], Statistics], group_size: int) -> None:
        self.graph = graph
        self.group_size = group_size
        self.products = find_products(graph)
        self.decisions: list[Decision] = []
        self._statistics = statistics
        self._inputs = {product: name for name, group in by_input(self.products).items() for product in group}
        self._rows: dict[Product, list[Factors]] = {}
        self._columns: dict[Product, list[Factors]] = {}
        self._stored: dict[Product, ir.Value] = {}
        self._rounded: dict[tuple[ir.Value, str], ir.Value] = {}

    def statistics(self, product: Product) -> Statistics:
        """Statistics of the product's input in the network before any scaling."""
        return self._statistics(self._inputs[product])

    def readers(self, x: ir.Value) -> list[Product] | None:
        """The products that multiply ``x``, or None if another operator reads it as well."""
        products = [product for product in self.products if product.x is x]
        nodes = {product.node for product in products}
        others = any(use.node not in nodes for use in x.uses())
        return None if others or x.is_graph_output() else products

    def product_of(self, value: ir.Value | None) -> Product | None:
        """The product that makes ``value``."""
        node = None if value is None else value.producer()
        return next((product for product in self.products if product.node is node), None)

    def scale_columns(self, product: Product, factors: Factors) -> None:
        """Multiply the matrix's columns by ``factors``, one for each input feature."""
        self._columns.setdefault(product, []).append(factors)

    def divide_rows(self, product: Product, factors: Factors) -> None:
        """Divide the matrix's rows by ``factors``, one for each output feature."""
        self._rows.setdefault(product, []).append(factors)

    def divide_vector(self, node: ir.Node, position: int, factors: Factors) -> None:
        """Divide the constant vector at input ``position`` of ``node`` by ``factors``, for this reader only."""
        value = initializer(node.inputs[position])
        assert value is not None
        tensor = value.const_value
        assert tensor is not None
        divided = computed(lambda: (tensor.numpy() / factors()).astype(np.float32), ir.DataType.FLOAT, extents(tensor))
        node.replace_input_with(position, add_initializer(self.graph, f"{node.name}.{value.name}.divided", divided))
        self._remove_unread(value)

    def matrix(self, product: Product) -> NDArray[np.float32]:
        """The float32 matrix [out, in] with all factors. Raises BuildError if it is not finite."""
        return self._matrix(product)[:]

    def columns(self, product: Product) -> NDArray[np.float32]:
        """The product of all factors of the matrix's columns; its input was divided by them."""
        factors = [vector() for vector in self._columns.get(product, ())]
        return np.prod([np.ones(product.in_features, np.float32), *factors], axis=0, dtype=np.float32)

    def rows(self, product: Product) -> NDArray[np.float32]:
        """The product of all factors by which the matrix's rows, and so its output, were divided."""
        factors = [vector() for vector in self._rows.get(product, ())]
        return np.prod([np.ones(product.matrix.shape[0], np.float32), *factors], axis=0, dtype=np.float32)

    def matrix_before(self, product: Product) -> NDArray[np.float32]:
        """The float32 matrix [out, in] without the factors of its columns, which are computed from it.

        Raises BuildError if it is not finite.
        """
        return self._stored_matrix(product, [])[:]

    def store(self, product: Product, weights: QuantizedFormat) -> None:
        """Keep the matrix in the format ``weights``, rounded to the nearest."""
        shape = extents(product.matrix.tensor("weight"))
        self.store_tensors(product, weights, weights.quantized(shape, lambda: self._matrix(product)))

    def store_tensors(
        self, product: Product, weights: QuantizedFormat, tensors: Mapping[str, ir.TensorProtocol]
    ) -> None:
        """Keep the matrix as ``tensors``, by operand, of the format ``weights``."""
        name = str(product.matrix.operands["weight"].name)
        old = product.weight
        self._stored[product] = weights.express(self.graph, product.reader, name, tensors)
        product.reader.replace_input_with(0, self._stored[product])
        self._remove_unread(old)

    def check_groups(self, product: Product, scheme: str) -> int:
        """The group size. Raises BuildError unless rows are whole groups, and groups whole words of 4-bit weights."""
        size, columns = self.group_size, product.in_features
        if size > 0 and size % WORD == 0 and columns % size == 0:
            return size
        fits = [candidate for candidate in (128, 64, 32, 16, 8) if candidate % WORD == 0 and columns % candidate == 0]
        remedy = f"pass --group_size {fits[0]}" if fits else "pass --qformat int8_wo"
        raise BuildError(
            f"{product.name} has rows of {columns} weights, and {scheme} is to store them in groups of {size}: "
            f"expected a multiple of {WORD} that divides {columns}; {remedy}"
        )

    def round_tokens(self, product: Product, to: str) -> None:
        """Round the product's input to the dtype ``to``, with a scale for each token."""
        self._round(product, f"{to} by token", lambda x: quantize_per_token(self.graph, x, to))

    def round_tensor(self, product: Product, to: str, scale: float) -> None:
        """Round the product's input to the dtype ``to``, with one scale."""
        self._round(product, f"{to} {scale}", lambda x: quantize_per_tensor(self.graph, x, to, scale))

    def decide(self, site: str, text: str, kind: str = "inputs") -> None:
        """Record what was done, or could not be done, at ``site``."""
        self.decisions.append(Decision(site, text, kind))

    def finish(self) -> None:
        """Apply the factors to matrices that keep their type."""
        for product in {**self._rows, **self._columns}:
            if product not in self._stored:
                self._rescale(product)

    def _matrix(self, product: Product) -> Rows:
        return self._stored_matrix(product, [self.columns(product)] if product in self._columns else [])

    def _stored_matrix(self, product: Product, factors: list[NDArray[np.float32]]) -> Rows:
        divisors = [vector() for vector in self._rows.get(product, ())]
        return _Rescaled(product.name, product.matrix.tensor("weight").numpy(), divisors, factors)

    def _round(self, product: Product, how: str, make: Callable[[ir.Value], ir.Value]) -> None:
        x = product.x
        if (x, how) not in self._rounded:
            self._rounded[x, how] = make(x)
        product.node.replace_input_with(0, self._rounded[x, how])

    def _rescale(self, product: Product) -> None:
        weight = product.matrix.operands["weight"]
        tensor, old = product.matrix.tensor("weight"), product.weight
        dtype = tensor.dtype
        scaled = computed(lambda: self.matrix(product).astype(dtype.numpy()), dtype, extents(tensor))
        new = add_initializer(self.graph, f"{weight.name}.scaled", scaled)
        if (cast := made_by(old, "Cast")) is not None and cast.inputs[0] is weight:
            cast_result = ir.Value(name=f"{new.name}.cast", type=old.type, shape=old.shape)
            to = {"to": int(ir.DataType.FLOAT)}
            node = ir.node("Cast", [new], to, outputs=[cast_result], name=cast_result.name)
            self.graph.insert_before(product.reader, node)
            new = cast_result
        product.reader.replace_input_with(0, new)
        self._remove_unread(old)

    def _remove_unread(self, value: ir.Value) -> None:
        """Remove a matrix cast to float32 or a weight that has no readers any more."""
        producer = value.producer()
        if producer is not None and not value.uses():
            (source,) = producer.inputs
            assert source is not None
            self.graph.remove(producer, safe=True)
            value = source
        if value.is_initializer() and not value.uses():
            del self.graph.initializers[str(value.name)]
