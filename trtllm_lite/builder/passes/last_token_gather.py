"""Keeps only the rows whose logits are wanted, as early as that changes no result.

Walking back from the logits, every operator that treats rows alike and is read by nothing else may run on the wanted
rows only: for a decoder, everything after the last attention, so that in prefill the last MLP and the LM head see a row
per sequence instead of a row per token. The features that a draft head stores for draft tokens are wanted in the same
rows as logits.
"""

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from trtllm_lite.builder.graph import dims, fused_node, site, value_of
from trtllm_lite.builder.passes.contract import Decision, GraphPass
from trtllm_lite.builder.passes.remove_padding import NUM_TOKENS
from trtllm_lite.common.vocabulary import HIDDEN, LOGITS, LOGITS_INDICES
from trtllm_lite.plugins.schema import DOMAIN, all_schemas

NUM_LOGITS = "num_logits"

# Symbol that names, in schemas, an axis along which an operator works row by row.
_ROWS = "rows"


def _rewrite(graph: ir.Graph) -> list[Decision]:
    logits = _logits(graph)
    outputs = [logits, *(value for value in graph.outputs if value.name == HIDDEN)]
    indices = value_of(LOGITS_INDICES, ir.DataType.INT32, [NUM_LOGITS])
    graph.inputs.insert(_num_step_inputs(graph), indices)
    region = _sinkable(graph, outputs)
    gathered: dict[ir.Value, ir.Value] = {}
    for node in [node for node in graph if node in region]:
        for position, value in enumerate(node.inputs):
            if value is not None and value.producer() not in region and (dims(value) or ())[:1] == (NUM_TOKENS,):
                if value not in gathered:
                    gathered[value] = _gather(graph, value, indices, node)
                node.replace_input_with(position, gathered[value])
        for output in (value for value in node.outputs if (dims(value) or ())[:1] == (NUM_TOKENS,)):
            output.shape = ir.Shape([NUM_LOGITS, *(dims(output) or ())[1:]])
    for output in outputs:
        if output.producer() in region:
            continue
        if output not in gathered:
            gathered[output] = _gather(graph, output, indices, None)
        graph.outputs[graph.outputs.index(output)] = gathered[output]
        output.name, gathered[output].name = f"{output.name}.all", output.name
    return [Decision(_origin(value), True) for value in gathered]


def _origin(value: ir.Value) -> str:
    """The path of the node that makes ``value``, or the name of an input."""
    producer = value.producer()
    return str(value.name) if producer is None else site(producer)


def _logits(graph: ir.Graph) -> ir.Value:
    return next(value for value in graph.outputs if value.name == LOGITS)


def _num_step_inputs(graph: ir.Graph) -> int:
    """The number of step inputs; caches come last among the inputs, and they alone have four axes."""
    return sum(len(dims(value) or ()) < 4 for value in graph.inputs)


def _sinkable(graph: ir.Graph, results: Sequence[ir.Value]) -> set[ir.Node]:
    """Row-wise nodes whose outputs are read only by other such nodes, or are among ``results``."""
    region: set[ir.Node] = set()
    for node in reversed(list(graph)):
        outputs = [output for output in node.outputs if output.uses() or output.is_graph_output()]
        wanted = (output in results or not output.is_graph_output() for output in outputs)
        inside = (use.node in region for output in outputs for use in output.uses())
        if _is_row_wise(node) and all(wanted) and all(inside):
            region.add(node)
    return region


def _is_row_wise(node: ir.Node) -> bool:
    """Whether an operator computes its outputs row by row; it may also count rows."""
    schema = all_schemas().get(node.op_type) if node.domain == DOMAIN else None
    return schema is not None and all(output.shape[:1] == (_ROWS,) for output in schema.outputs if not output.state)


def _gather(graph: ir.Graph, value: ir.Value, indices: ir.Value, before: ir.Node | None) -> ir.Value:
    output = value_of(f"{value.name}.wanted", ir.DataType.FLOAT, [NUM_LOGITS, *(dims(value) or ())[1:]])
    node = fused_node("GatherRows", f"{value.name}.gather", {"x": value, "indices": indices}, {"y": output})
    if before is None:
        graph.append(node)
    else:
        graph.insert_before(before, node)
    return output


def _requires(graph: ir.Graph) -> Iterable[str]:
    if not any(value.name == LOGITS and (dims(value) or ())[:1] == (NUM_TOKENS,) for value in graph.outputs):
        yield f"expected an output {LOGITS} of packed rows"


def _ensures(graph: ir.Graph) -> Iterable[str]:
    if (dims(_logits(graph)) or ())[:1] != (NUM_LOGITS,):
        yield f"{LOGITS} still has a row per token"


LAST_TOKEN_GATHER = GraphPass("last_token_gather", _rewrite, _requires, _ensures)
