"""Puts the bodies of the project's functions that treat each token by itself in the place of their calls.

TensorRT takes networks without functions.
"""

from collections.abc import Iterable

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from trtllm_lite.builder.graph import site
from trtllm_lite.builder.passes.contract import Decision, GraphPass
from trtllm_lite.network.functions import TOKEN_WISE, definition, is_call
from trtllm_lite.network.graph import IR_VERSION


def _calls(graph: ir.Graph) -> list[ir.Node]:
    return [node for node in graph if is_call(node) and node.op_type in TOKEN_WISE]


def _rewrite(graph: ir.Graph) -> list[Decision]:
    decisions = [Decision(site(call), True) for call in _calls(graph)]
    if decisions:
        InlinePass()(ir.Model(graph, ir_version=IR_VERSION, functions=[definition(name) for name in TOKEN_WISE]))
    return decisions


def _ensures(graph: ir.Graph) -> Iterable[str]:
    for call in _calls(graph):
        yield f"{call.name} is still called"


BODIES = GraphPass("bodies", _rewrite, ensures=_ensures)
