"""Helpers to run a part of the pipeline and to inspect the resulting graph."""

from collections import Counter

import onnx_ir as ir

from tests.unit.builder.networks import Shape, network, with_shapes
from trtllm_lite.builder.passes import PIPELINE, Decision
from trtllm_lite.builder.pipeline import run_passes


def run_until(name: str, source: str | Shape | ir.Model = "llama") -> tuple[ir.Model, list[Decision]]:
    """The graph after the pass ``name`` and everything before it, and that pass's decisions."""
    model = source if isinstance(source, ir.Model) else network(source)
    last = [graph_pass.name for graph_pass in PIPELINE].index(name)
    result, fusions = run_passes(model, PIPELINE[: last + 1])
    return result, [Decision(f.site, f.fused, f.reason) for f in fusions if f.pass_name == name]


def operators(model: ir.Model) -> Counter[str]:
    """The number of nodes by operator."""
    return Counter(node.op_type for node in model.graph)


def find(model: ir.Model, name: str) -> ir.Node:
    """The node called ``name``."""
    return next(node for node in model.graph if node.name == name)


def find_value(model: ir.Model, name: str) -> ir.Value:
    """The input, initializer or intermediate value called ``name``."""
    graph = model.graph
    values = (*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs))
    return next(value for value in values if value.name == name)


def set_input(model: ir.Model, node: str, index: int, value: str | ir.Value) -> ir.Model:
    """``model`` with one input of a node rewired; shapes are inferred again."""
    source = find_value(model, value) if isinstance(value, str) else value
    find(model, node).replace_input_with(index, source)
    return with_shapes(model)


def set_attribute(model: ir.Model, node: str, **attributes: int | float) -> ir.Model:
    """``model`` with attributes of a node set."""
    for key, value in attributes.items():
        find(model, node).attributes[key] = ir.convenience.convert_attribute(key, value)
    return with_shapes(model)


def insert_after(model: ir.Model, value: str, op_type: str, **attributes: int | float) -> ir.Model:
    """``model`` with a unary operator between ``value`` and all of its readers."""
    source = find_value(model, value)
    readers = list(source.uses())
    node = ir.node(op_type, [source], attributes, name=f"{value}.inserted")
    node.outputs[0].name = f"{value}.inserted"
    producer = source.producer()
    assert producer is not None
    model.graph.insert_after(producer, node)
    for use in readers:
        use.node.replace_input_with(use.idx, node.outputs[0])
    return with_shapes(model)
