"""Inserts standard operators into an existing graph, through the interface of :mod:`trtllm_lite.network.blocks`."""

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from trtllm_lite.network.blocks import AddOperator


def adder(graph: ir.Graph, before: ir.Node, name: str) -> AddOperator:
    """A function that adds operators under ``name``, in front of ``before``."""

    def add(
        op_type: str,
        inputs: Sequence[ir.Value],
        what: str,
        shape: Sequence[int | ir.SymbolicDim],
        attributes: Mapping[str, int],
    ) -> ir.Value:
        output = ir.Value(name=f"{name}.{what}", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape))
        graph.insert_before(before, ir.node(op_type, inputs, attributes, outputs=[output], name=output.name))
        return output

    return add
