"""Records ONNX nodes under readable paths, and the weights that they need, without reading the weights."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from trtllm_lite.network.blocks import AddOperator, Blocks, Part, Rounding, dequantize
from trtllm_lite.network.dtypes import ONNX
from trtllm_lite.network.functions import FUNCTIONS, FUNCTIONS_VERSION, definition
from trtllm_lite.network.module_rows import ModuleRows
from trtllm_lite.network.rounding import round_per_tensor, round_per_token
from trtllm_lite.network.source_rows import rows_of
from trtllm_lite.network.weight_expression import SourceTensor, Transpose, WeightExpression

OPSET_VERSION = 24
IR_VERSION = 12  # the IR version of opset 24
QFORMAT = "trtllm_lite.qformat"  # the property of a network with the quantization of its products
MODULES = "trtllm_lite.modules"  # the property with the ModuleRows of linear layers by name, as JSON

Attribute = int | float | str | Sequence[int]


@dataclass(frozen=True)
class Weight:
    """A tensor of the network: ``value`` is its place in the graph, ``dtype`` the stored type of ``expression``."""

    name: str
    expression: WeightExpression
    dtype: ir.DataType
    value: ir.Value

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the stored tensor."""
        return self.expression.shape


class GraphBuilder:
    """Appends nodes; names are dotted paths like ``layers.3.attention.q_proj``, and so are their outputs.

    Matrices are stored as ``dtype``, vectors as float32. A weight that is a source tensor keeps that tensor's name; a
    computed weight is named after the node that reads it (weights.layers.3.attention.q_proj.weight).
    """

    def __init__(self, dtype: ir.DataType, blocks: Mapping[str, Blocks] | None = None) -> None:
        """``blocks`` are the source tensors stored in blocks; matrices that are made of their rows stay in blocks."""
        self.dtype = dtype
        self._blocks = blocks or {}
        self._dequantized: dict[WeightExpression, ir.Value] = {}
        self._inputs: dict[tuple[ir.Value, str, str, Rounding | None], ir.Value] = {}
        self.constants: dict[str, ir.Value] = {}
        self._shared: list[ir.Node] = []
        self._nodes: list[ir.Node] = []
        self._target = self._nodes
        self._weights: dict[WeightExpression, Weight] = {}
        self._weight_names: set[str] = set()
        self._path: list[str] = []
        self.leaves_inputs = False
        self.modules: dict[str, ModuleRows] = {}
        self.functions: dict[str, ir.Function] = {}

    @property
    def imports(self) -> dict[str, int]:
        """The versions of the domains of operators besides the standard one."""
        return {FUNCTIONS: FUNCTIONS_VERSION} if self.functions else {}

    @property
    def nodes(self) -> list[ir.Node]:
        """All nodes in order; nodes that layers share come first."""
        return [*self._shared, *self._nodes]

    @property
    def weights(self) -> tuple[Weight, ...]:
        """Every weight of the network, in the order of first use."""
        return tuple(self._weights.values())

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefix the names of everything added inside with ``name.``."""
        self._path.append(name)
        yield
        self._path.pop()

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Put nodes that are added inside before all layers and outside their paths; they depend on no layer."""
        path, target = self._path, self._target
        self._path, self._target = [], self._shared
        yield
        self._path, self._target = path, target

    def op(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        name: str,
        attributes: Mapping[str, Attribute] | None = None,
        output_name: str | None = None,
    ) -> ir.Value:
        """Add a node of the standard domain with one output; ``output_name`` overrides the output's path."""
        path = ".".join([*self._path, name])
        output = ir.Value(name=output_name or path)
        convert = ir.convenience.convert_attributes(dict(attributes or {}))
        self._target.append(ir.Node("", op_type, inputs, convert, outputs=[output], name=path))
        return output

    def call(
        self,
        function: str,
        inputs: Sequence[ir.Value],
        name: str,
        attributes: Mapping[str, Attribute],
        shapes: Sequence[Sequence[int | str]],
    ) -> list[ir.Value]:
        """Call one of the project's functions, whose float32 outputs have these ``shapes``."""
        path = ".".join([*self._path, name])
        if function not in self.functions:
            self.functions[function] = definition(function)
        suffixes = ["", *(f".{number}" for number in range(1, len(shapes)))]
        kind = ir.TensorType(ir.DataType.FLOAT)
        outputs = [
            ir.Value(name=path + suffix, type=kind, shape=ir.Shape(shape))
            for suffix, shape in zip(suffixes, shapes, strict=True)
        ]
        self._target.append(ir.node(function, inputs, attributes, domain=FUNCTIONS, outputs=outputs, name=path))
        return outputs

    def of_module(self, expression: WeightExpression, name: str) -> None:
        """Record which rows of a module of the source the product ``name`` computes, if its weight consists of rows of
        one module."""
        rows = rows_of(expression)
        if rows is not None:
            self.modules[".".join([*self._path, name])] = rows

    def split(self, x: ir.Value, extents: Sequence[int], name: str) -> list[ir.Value]:
        """Split the last axis of ``x`` into consecutive parts of these extents."""
        path = ".".join([*self._path, name])
        parts = [ir.Value(name=f"{path}.{number}") for number in range(len(extents))]
        sizes = self.constant(f"{path}.sizes", np.array(extents))
        self._target.append(ir.node("Split", [x, sizes], {"axis": -1}, outputs=parts, name=path))
        return parts

    def top_k(self, x: ir.Value, count: ir.Value, name: str) -> tuple[ir.Value, ir.Value]:
        """The ``count`` largest elements along the last axis of ``x``, and their indices."""
        path = ".".join([*self._path, name])
        values, indices = ir.Value(name=path), ir.Value(name=f"{path}.indices")
        self._target.append(ir.node("TopK", [x, count], {"axis": -1}, outputs=[values, indices], name=path))
        return values, indices

    def zeros_like(self, x: ir.Value, name: str) -> ir.Value:
        """Zeros in the shape of ``x``: x < x is false, also for infinities and NaN."""
        nowhere = self.op("Less", [x, x], f"{name}.nowhere")
        return self.op("Cast", [nowhere], name, {"to": ir.DataType.FLOAT.value})

    def constant(self, name: str, array: np.ndarray) -> ir.Value:
        """A small initializer stored inside the network file. Equal names share it, and must mean equal content."""
        if name not in self.constants:
            tensor = ir.tensor(array, name=name)
            shape = ir.Shape(array.shape)
            self.constants[name] = ir.Value(
                name=name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor
            )
        known = self.constants[name].const_value
        if known is None or not np.array_equal(known.numpy(), array):
            raise ValueError(f"the constant {name} is {known}, and {array} as well")
        return self.constants[name]

    def scalar(self, name: str, value: float) -> ir.Value:
        """A float32 :meth:`constant` under the current path."""
        return self.constant(".".join([*self._path, name]), np.array(value, np.float32))

    def floats(self, name: str, values: NDArray) -> ir.Value:
        """A float32 :meth:`constant` under the current path, of a few values for each feature at most."""
        return self.constant(".".join([*self._path, name]), values.astype(np.float32))

    def vector(self, expression: WeightExpression, name: str) -> ir.Value:
        """A weight stored as float32; ``name`` is its name under the current path unless the source names it."""
        return self._weight(expression, name, ir.DataType.FLOAT)

    def indices(self, expression: WeightExpression, name: str) -> ir.Value:
        """A weight of int32 indices."""
        return self._weight(expression, name, ir.DataType.INT32)

    def rows(self, expression: WeightExpression, ids: ir.Value, name: str) -> ir.Value:
        """The rows ``ids`` of a weight in float32; ``name`` is the name of the node that gathers them."""
        if self._stored_as(expression) is not None:
            return self.op("Gather", [self.matrix(expression, name), ids], name, {"axis": 0})
        table = self._weight(expression, f"{name}.weight", self.dtype)
        return self.as_float32(self.op("Gather", [table, ids], name, {"axis": 0}), name)

    def input_of(self, expression: WeightExpression, x: ir.Value, name: str) -> ir.Value:
        """The input of the product ``name``: ``x``, scaled, reordered or rounded if the source requires it."""
        blocks = self._stored_as(expression)
        if blocks is None or not blocks.changes_input:
            return x
        key = (x, blocks.factors, blocks.order, blocks.rounding)
        if key not in self._inputs:
            tensor = next(expression.sources())
            if blocks.factors:
                part = blocks.part(tensor, "input_factor")
                x = self.op("Mul", [x, self._weight(part, part.part, ir.DataType.FLOAT)], f"{name}.x.scaled")
            if blocks.order:
                part = blocks.part(tensor, "input_order")
                order = self._weight(part, part.part, ir.DataType.INT32)
                x = self.op("Gather", [x, order], f"{name}.x.in_order", {"axis": -1})
            rounding = blocks.rounding
            self._inputs[key] = x if rounding is None else self.rounded(x, rounding, expression.shape[-1], f"{name}.x")
        return self._inputs[key]

    def rounded(self, x: ir.Value, rounding: Rounding, features: int, name: str) -> ir.Value:
        """``x``, which has ``features`` features, rounded for its readers by nodes under ``name``."""
        if rounding.scale is None:
            return round_per_token(self._adder(name), self.constant, x, rounding.to, features)
        return round_per_tensor(self._adder(name), x, rounding.to, self.scalar(f"{name}.scale", rounding.scale))

    def matrix(self, expression: WeightExpression, name: str, *, plain_input: bool = False) -> ir.Value:
        """The weight of the node ``name`` as a float32 operand: cast right where it is used if stored narrower.

        A matrix that the source stores in blocks stays in blocks. With ``plain_input`` activations are not scaled,
        reordered or rounded, and a matrix that needs scaled or reordered ones is therefore not in blocks.
        """
        blocks = self._stored_as(expression, plain_input)
        if blocks is not None and not (plain_input and blocks.changes_input):
            if expression not in self._dequantized:
                self._dequantized[expression] = self._dequantize(expression, blocks, name)
            return self._dequantized[expression]
        return self.as_float32(self._weight(expression, f"{name}.weight", self.dtype), name)

    def as_float32(self, value: ir.Value, name: str) -> ir.Value:
        """``value``, which is of the matrices' type, as float32."""
        if self.dtype == ir.DataType.FLOAT:
            return value
        return self.op("Cast", [value], f"{name}.cast", {"to": ir.DataType.FLOAT.value})

    def _stored_as(self, expression: WeightExpression, plain_input: bool = False) -> Blocks | None:
        """The blocks of all source tensors, if the expression takes only whole rows of them.

        With ``plain_input`` the source may round the inputs of these tensors in different ways.
        """
        found = {self._blocks.get(tensor.name) for tensor in expression.sources()}
        if plain_input and any(blocks is not None and blocks.rounding for blocks in found):
            self.leaves_inputs = True
            found = {None if blocks is None else replace(blocks, rounding=None) for blocks in found}
        if len(found) != 1 or expression.by_rows(_as_stored) is None:
            return None
        return found.pop()

    def _dequantize(self, expression: WeightExpression, blocks: Blocks, name: str) -> ir.Value:
        rows, depth = expression.shape
        parts: dict[str, ir.Value] = {}
        for part in blocks.names:
            of_rows = expression.by_rows(partial(_part, blocks, part))
            assert of_rows is not None
            parts[part] = self._weight(of_rows, f"{name}.{part}", ONNX[blocks.dtype_of(part)])

        def constant(what: str, array: np.ndarray) -> ir.Value:
            return self.constant(".".join([*self._path, name, what]), array)

        return dequantize(self._adder(name), constant, parts, (rows, depth), depth // blocks.block_size)

    def _adder(self, name: str) -> AddOperator:
        """A function that adds operators under ``name``; their shapes are inferred later."""

        def add(
            op_type: str,
            inputs: Sequence[ir.Value],
            what: str,
            shape: Sequence[int | ir.SymbolicDim],
            attributes: Mapping[str, int],
        ) -> ir.Value:
            del shape
            return self.op(op_type, inputs, f"{name}.{what}", attributes)

        return add

    def _weight(self, expression: WeightExpression, name: str, dtype: ir.DataType) -> ir.Value:
        if expression not in self._weights:
            path = ".".join(["weights", *self._path, name])
            path = expression.name if isinstance(expression, SourceTensor | Part) else path
            if path in self._weight_names:
                raise ValueError(f"two weights are named {path}")
            self._weight_names.add(path)
            value = ir.Value(name=path, type=ir.TensorType(dtype), shape=ir.Shape(expression.shape))
            self._weights[expression] = Weight(path, expression, dtype, value)
        return self._weights[expression].value


def _as_stored(rows: SourceTensor | Transpose) -> WeightExpression | None:
    return rows if isinstance(rows, SourceTensor) else None


def _part(blocks: Blocks, name: str, rows: SourceTensor | Transpose) -> WeightExpression | None:
    return blocks.part(rows, name) if isinstance(rows, SourceTensor) else None


@dataclass(frozen=True)
class Network:
    """A finished graph whose weights are still unbound: ``weights`` lists every tensor it needs.

    With ``leaves_inputs``, experts multiply unrounded activations, although the source rounds them. ``modules`` maps
    the names of linear layers' products to their rows in the source's modules. ``functions`` are those of the project
    that the graph calls.
    """

    graph: ir.Graph
    weights: tuple[Weight, ...]
    leaves_inputs: bool = False
    modules: Mapping[str, ModuleRows] = field(default_factory=dict)
    functions: tuple[ir.Function, ...] = ()

    def bind(self, tensors: Mapping[str, ir.TensorProtocol], producer: str, version: str) -> ir.Model:
        """Attach a tensor (in memory or external) to every weight and return the model."""
        for weight in self.weights:
            weight.value.const_value = tensors[weight.name]
            self.graph.register_initializer(weight.value)
        model = ir.Model(
            self.graph,
            ir_version=IR_VERSION,
            producer_name=producer,
            producer_version=version,
            functions=self.functions,
        )
        note_modules(model, self.modules)
        return model


def note_modules(model: ir.Model, modules: Mapping[str, ModuleRows]) -> None:
    """Record in ``model`` which rows of the source's modules its products, given by name, compute."""
    model.metadata_props[MODULES] = json.dumps({name: asdict(rows) for name, rows in modules.items()})
