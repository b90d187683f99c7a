"""Records ONNX nodes under readable paths, and the weights that they need, without needing the weights' bytes."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

OPSET_VERSION = 24
IR_VERSION = 12  # the one that belongs to opset 24

Attribute = int | float | str | Sequence[int]


@dataclass(frozen=True)
class Weight:
    """A tensor the network needs: ``value`` is its place in the graph, ``dtype`` how it is stored."""

    name: str
    shape: tuple[int, ...]
    dtype: ir.DataType
    value: ir.Value


class GraphBuilder:
    """Appends nodes; names are dotted paths like ``layers.3.attention.q_proj``, and so are their outputs."""

    def __init__(self) -> None:
        self.nodes: list[ir.Node] = []
        self.constants: dict[str, ir.Value] = {}
        self.weights: dict[str, Weight] = {}
        self._path: list[str] = []

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefix the names of everything added inside with ``name.``."""
        self._path.append(name)
        yield
        self._path.pop()

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
        self.nodes.append(ir.Node("", op_type, inputs, convert, outputs=[output], name=path))
        return output

    def constant(self, name: str, array: np.ndarray) -> ir.Value:
        """A small initializer stored inside the network file; one per ``name``, which must mean one content."""
        if name not in self.constants:
            tensor = ir.tensor(array, name=name)
            shape = ir.Shape(array.shape)
            self.constants[name] = ir.Value(
                name=name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor
            )
        return self.constants[name]

    def weight(self, name: str, shape: tuple[int, ...], dtype: ir.DataType) -> ir.Value:
        """An initializer stored in the weights file; asking twice (tied embeddings) gives the same one."""
        if name not in self.weights:
            value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
            self.weights[name] = Weight(name, shape, dtype, value)
        return self.weights[name].value

    def matrix(self, name: str, shape: tuple[int, ...], dtype: ir.DataType, path: str) -> ir.Value:
        """A weight as a float32 operand: cast right where it is used if it is stored narrower."""
        value = self.weight(name, shape, dtype)
        if dtype == ir.DataType.FLOAT:
            return value
        return self.op("Cast", [value], f"{path}.cast", {"to": ir.DataType.FLOAT.value})


@dataclass(frozen=True)
class Network:
    """A finished graph whose weights are still unbound: ``weights`` lists every tensor it needs."""

    graph: ir.Graph
    weights: tuple[Weight, ...]

    def bind(self, tensors: Mapping[str, ir.TensorProtocol], producer: str, version: str) -> ir.Model:
        """Attach a tensor (in memory or external) to every weight and return the model."""
        for weight in self.weights:
            weight.value.const_value = tensors[weight.name]
            self.graph.register_initializer(weight.value)
        return ir.Model(self.graph, ir_version=IR_VERSION, producer_name=producer, producer_version=version)
