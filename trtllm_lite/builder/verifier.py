"""Checks a graph between passes: well-formed, in order, and made of known operators used as their schemas say."""

from collections.abc import Iterator
from functools import cache

import onnx
import onnx_ir as ir

from trtllm_lite.builder.graph import Dim, dims
from trtllm_lite.common.vocabulary import DTYPES
from trtllm_lite.network.dtypes import DTYPE_NAMES
from trtllm_lite.network.functions import FUNCTIONS, is_call
from trtllm_lite.plugins.schema import DOMAIN, Argument, Attribute, Schema, network_schemas

_ONNX_TYPES = {"int": ir.AttributeType.INT, "float": ir.AttributeType.FLOAT, "str": ir.AttributeType.STRING}


def violations(model: ir.Model) -> Iterator[str]:
    """Return a sentence for each defect of ``model``; none if it is sound."""
    graph = model.graph
    others = [str(key) for key in model.functions if key[0] != FUNCTIONS]
    if others:
        yield f"the model defines functions ({', '.join(others)}), expected the project's alone"
    defined: dict[str, ir.Value] = {}
    for source in (*graph.inputs, *graph.initializers.values()):
        yield from _define(source, defined)
    for node in graph:
        for value in node.inputs:
            if value is not None and defined.get(value.name or "") is not value:
                yield f"{node.op_type} {node.name} reads {value.name} before it is defined"
        for made in node.outputs:
            if made.name:
                yield from _define(made, defined)
        yield from _check_operator(node, graph.opset_imports)
    for result in graph.outputs:
        if defined.get(result.name or "") is not result:
            yield f"the output {result.name} is not computed"


def _define(value: ir.Value, defined: dict[str, ir.Value]) -> Iterator[str]:
    if not value.name:
        yield "a value has no name"
    elif value.name in defined and defined[value.name] is not value:
        yield f"the name {value.name} is defined twice"
    defined[value.name or ""] = value


def _check_operator(node: ir.Node, opsets: dict[str, int]) -> Iterator[str]:
    if any(attr.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for attr in node.attributes.values()):
        yield f"{node.op_type} {node.name} has a subgraph; control flow is not supported"
    if node.domain == DOMAIN:
        schema = network_schemas().get(node.op_type)
        if schema is None:
            known = ", ".join(network_schemas())
            yield (
                f"{node.name}: {DOMAIN} has no operator {node.op_type} for networks; it has {known}; packages may add "
                "others (docs/contributing/out-of-tree.md)"
            )
        else:
            yield from (f"{node.op_type} {node.name}: {problem}" for problem in _check_schema(node, schema))
    elif is_call(node):
        return
    elif node.domain or not _is_standard(node.op_type, opsets.get("", 1)):
        domain = node.domain or f"ONNX opset {opsets.get('', 1)}"
        yield f"{node.name}: {node.op_type} is not an operator of {domain}"


@cache
def _is_standard(op_type: str, opset: int) -> bool:
    """Whether ONNX has the operator."""
    return bool(onnx.defs.has(op_type, opset))


def _check_schema(node: ir.Node, schema: Schema) -> Iterator[str]:
    yield from _check_attributes(schema.attributes, node)
    symbols: dict[str, Dim] = {}
    inputs = _pair(schema.inputs, node.inputs)
    outputs = _pair(schema.outputs, [value if value.name else None for value in node.outputs])
    if inputs is None or outputs is None:
        yield f"has {len(node.inputs)} inputs and {len(node.outputs)} outputs, more than its schema"
        return
    present = {argument.name for argument, value in inputs if value is not None}
    dtypes = {a.name: DTYPE_NAMES.get(value.dtype) for a, value in inputs if value is not None and value.dtype}
    for argument, value in (*inputs, *outputs):
        yield from _check_argument(argument, value, symbols)
        if argument.present_with and (argument.name in present) != (argument.present_with in present):
            yield f"{argument.name} should be there if and only if {argument.present_with} is"
        dtype = dtypes.get(argument.name)
        if argument.scaled_by and dtype and DTYPES[dtype].scaled != (argument.scaled_by in present):
            yield f"{argument.scaled_by} should be there if and only if {argument.name} has a dtype that wants scales"


def _check_attributes(declared: tuple[Attribute, ...], node: ir.Node) -> Iterator[str]:
    expected = {attribute.name: _ONNX_TYPES[attribute.type] for attribute in declared}
    found = {name: attribute.type for name, attribute in node.attributes.items()}
    if found != expected:
        named = [{name: kind.name.lower() for name, kind in types.items()} for types in (expected, found)]
        yield f"expected the attributes {named[0]}, found {named[1]}"
    for attribute in declared:
        given = node.attributes.get(attribute.name)
        if attribute.choices and given is not None and given.value not in attribute.choices:
            yield f"{attribute.name} should be one of {', '.join(attribute.choices)}, not {given.value}"


def _pair(arguments: tuple[Argument, ...], values: object) -> list[tuple[Argument, ir.Value | None]] | None:
    given: list[ir.Value | None] = list(values)  # type: ignore[call-overload]
    if len(given) > len(arguments):
        return None
    return list(zip(arguments, [*given, *[None] * (len(arguments) - len(given))], strict=True))


def _check_argument(argument: Argument, value: ir.Value | None, symbols: dict[str, Dim]) -> Iterator[str]:
    if value is None:
        if not argument.optional:
            yield f"{argument.name} is missing"
        return
    if argument.step_input is not None and (not value.is_graph_input() or value.name != argument.step_input):
        yield f"{argument.name} should be the step input {argument.step_input}, not {value.name}"
    if argument.constant and not value.is_initializer():
        yield f"{argument.name} should be a weight, not {value.name}, which the network computes"
    dtype = None if value.dtype is None else DTYPE_NAMES.get(value.dtype, str(value.dtype))
    if dtype not in argument.dtypes:
        yield f"{argument.name} ({value.name}) should be {' or '.join(argument.dtypes)}, not {dtype}"
    shape = dims(value)
    if shape is None or len(shape) != len(argument.shape):
        yield f"{argument.name} ({value.name}) should have the shape {list(argument.shape)}, not {shape}"
        return
    for expected, extent in zip(argument.shape, shape, strict=True):
        bound = symbols.setdefault(expected, extent) if isinstance(expected, str) and extent is not None else expected
        if extent is None or bound != extent:
            yield f"{argument.name} ({value.name}) has the extent {extent} where {expected} is {bound}"
