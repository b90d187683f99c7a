"""The helpers that passes share to read and rewrite onnx_ir graphs."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
import onnx_ir as ir

from trtllm_lite.plugins.schema import DOMAIN, DOMAIN_VERSION, Argument, all_schemas

_MAX_CONSTANT_SIZE = 4096  # elements; anything larger is a weight, whose data stays on disk while passes run

_ATTRIBUTE_TYPES: dict[str, type[int] | type[float] | type[str]] = {"int": int, "float": float, "str": str}

Dim = int | str


def dims(value: ir.Value | None) -> tuple[Dim | None, ...] | None:
    """Extents as integers and symbols (None: unknown extent), or None if the rank is unknown."""
    if value is None or value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape.dims)


def features_of(value: ir.Value) -> int:
    """The last extent of a value, which is known."""
    features = (dims(value) or (None,))[-1]
    assert isinstance(features, int)
    return features


def produced_by(value: ir.Value | None, *op_types: str, domain: str = "") -> ir.Node | None:
    """The node that makes ``value``, if it is in ``domain`` and one of ``op_types``."""
    node = None if value is None else value.producer()
    return node if node is not None and node.domain == domain and node.op_type in op_types else None


def fused_by(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """The node that makes ``value`` if it is the fused operator ``op_type``."""
    return produced_by(value, op_type, domain=DOMAIN)


def nodes_of(graph: ir.Graph, op_type: str, domain: str = "") -> list[ir.Node]:
    """Nodes of one operator in graph order; a list, so that the graph may change while it is walked."""
    return [node for node in graph if node.op_type == op_type and node.domain == domain]


def only_user(value: ir.Value) -> ir.Node | None:
    """The single node that reads ``value``; None if there are more, or if it is an output of the graph."""
    users = {use.node for use in value.uses()}
    return next(iter(users)) if len(users) == 1 and not value.is_graph_output() else None


def weight_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor of an initializer (its data may be on disk still), or None if ``value`` is not one."""
    return value.const_value if value is not None and value.is_initializer() else None


def small_constant(value: ir.Value | None, max_size: int = _MAX_CONSTANT_SIZE) -> np.ndarray | None:
    """The elements of a constant of up to ``max_size`` elements (an initializer or a Constant node), or None."""
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    return tensor.numpy() if tensor is not None and tensor.size <= max_size else None


def scalar_constant(value: ir.Value | None) -> float | int | None:
    """The only element of a constant, or None; the elements of larger ones, which may be weights, are not read."""
    array = small_constant(value, max_size=1)
    return array.item() if array is not None and array.size == 1 else None


def integers(value: ir.Value | None) -> list[int] | None:
    """The elements of a small integer constant, or None."""
    array = small_constant(value)
    return array.reshape(-1).tolist() if array is not None and array.dtype.kind == "i" else None


def attribute(node: ir.Node, name: str, default: Any = None) -> Any:
    """The value of an attribute, or ``default`` if the node does not carry it."""
    found = node.attributes.get(name)
    return default if found is None else found.value


def site(*nodes: ir.Node) -> str:
    """The place of the nodes in the model: the longest common path of their names ("layers.3.attention")."""
    paths = [(node.name or node.op_type).split(".") for node in nodes]
    shared = takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))
    return ".".join(parts[0] for parts in shared)


def value_of(name: str, dtype: ir.DataType, shape: Sequence[Dim | None]) -> ir.Value:
    """A new value with a name, type and shape."""
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))


def fused_node(
    op_type: str,
    name: str,
    inputs: Mapping[str, ir.Value | None],
    outputs: Mapping[str, ir.Value],
    attributes: Mapping[str, int | float | str] | None = None,
) -> ir.Node:
    """A node of this project's domain with operands named as in its schema; the verifier checks it after the pass.

    Columns that it reads of wider rows begin at 0 unless ``attributes`` say otherwise.
    """
    schema = all_schemas()[op_type]
    types = {attribute.name: _ATTRIBUTE_TYPES[attribute.type] for attribute in schema.attributes}
    begins = {argument.first: 0 for argument in schema.inputs if argument.columns}
    typed = begins | {key: types[key](value) for key, value in (attributes or {}).items()}
    converted = ir.convenience.convert_attributes(typed)
    given = _in_order(schema.inputs, inputs)
    made = [value or ir.Value(name="") for value in _in_order(schema.outputs, outputs)]
    return ir.Node(DOMAIN, op_type, given, converted, outputs=made, name=name, version=DOMAIN_VERSION)


def _in_order(arguments: Sequence[Argument], values: Mapping[str, ir.Value | None]) -> list[ir.Value | None]:
    """The values in the order of a schema, without absent ones at the end."""
    names = [argument.name for argument in arguments]
    assert values.keys() <= set(names), f"expected operands among {names}, found {list(values)}"
    ordered = [values.get(name) for name in names]
    while ordered and ordered[-1] is None:
        ordered.pop()
    return ordered


def operands(node: ir.Node) -> dict[str, ir.Value]:
    """The inputs of a fused node by name; absent ones are missing."""
    arguments = all_schemas()[node.op_type].inputs
    return {a.name: value for a, value in zip(arguments, node.inputs, strict=False) if value is not None}


def results(node: ir.Node) -> dict[str, ir.Value]:
    """The outputs of a fused node by name; absent ones are missing."""
    arguments = all_schemas()[node.op_type].outputs
    return {a.name: value for a, value in zip(arguments, node.outputs, strict=False) if value.name}


def columns_read(node: ir.Node, argument: Argument) -> tuple[int, int]:
    """The begin and end of the columns that a fused node reads of the rows ``argument``, one of its inputs."""
    schema, values = all_schemas()[node.op_type], operands(node) | results(node)
    if argument.columns is None:
        return 0, features_of(values[argument.name])
    others = [other for other in (*schema.inputs, *schema.outputs) if argument.columns in other.shape]
    other = next(other for other in others if other.name in values)
    count = (dims(values[other.name]) or ())[other.shape.index(argument.columns)]
    assert isinstance(count, int)
    first = attribute(node, argument.first)
    return first, first + count


def aliases_of(node: ir.Node) -> dict[int, int]:
    """Maps outputs of a fused node to the input whose storage they share, by position."""
    schema = all_schemas()[node.op_type]
    made = zip(schema.outputs, node.outputs, strict=False)
    return {i: schema.input_index(o.alias) for i, (o, _) in enumerate(made) if o.alias is not None}


def stored_in(value: ir.Value) -> ir.Value:
    """The value in whose storage ``value`` lies: an input of the graph that fused nodes have updated, or itself."""
    producer = value.producer()
    source = None if producer is None else aliases_of(producer).get(producer.outputs.index(value))
    if producer is None or source is None:
        return value
    updated = producer.inputs[source]
    assert updated is not None
    return stored_in(updated)


def cache_kind(value: ir.Value) -> str | None:
    """The kind of the paged cache as which fused operators read or update this input of the graph, if they do."""
    kinds = (all_schemas()[use.node.op_type].inputs[use.idx].cache for use in value.uses())
    return next((kind for kind in kinds if kind is not None), None)


def is_cache(value: ir.Value) -> bool:
    """Whether a fused operator reads or updates this input of the graph as a paged cache."""
    return cache_kind(value) is not None


def shared_experts(graph: ir.Graph) -> tuple[int, ...]:
    """How many experts all rows share, of each router in the order of layers."""
    return tuple(attribute(router, "num_shared") for router in nodes_of(graph, "Router", DOMAIN))


def replace_value(old: ir.Value, new: ir.Value) -> None:
    """Let every user of ``old``, graph outputs included, read ``new``; an output of the graph keeps its name."""
    if old.is_graph_output():
        old.name, new.name = f"{old.name}.replaced", old.name
    old.replace_all_uses_with(new, replace_graph_outputs=True)


def remove_dead(graph: ir.Graph) -> None:
    """Remove nodes and initializers that have no readers; inputs and outputs of the graph stay."""
    for node in reversed(list(graph)):
        if not any(output.uses() or output.is_graph_output() for output in node.outputs):
            graph.remove(node, safe=True)
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del graph.initializers[name]


def remove_unused_inputs(graph: ir.Graph, candidates: Iterable[ir.Value]) -> None:
    """Remove those inputs among ``candidates`` that have no readers."""
    for value in candidates:
        if not value.uses() and not value.is_graph_output():
            graph.inputs.remove(value)
