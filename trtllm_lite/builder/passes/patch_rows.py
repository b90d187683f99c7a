"""Lets patches of images take the place of tokens: Where(ids < 0, rows of patches, table rows) becomes one Embedding.

The rows of patches are then the step input ``token_rows``, of which a step may have fewer than tokens: what is computed
of them alone is computed for them alone.
"""

from collections.abc import Iterable

import onnx_ir as ir

from trtllm_lite.builder.graph import (
    dims,
    fused_node,
    nodes_of,
    produced_by,
    remove_dead,
    replace_value,
    scalar_constant,
    site,
    value_of,
    weight_tensor,
)
from trtllm_lite.builder.passes.attention_pattern import MismatchError, expect
from trtllm_lite.builder.passes.contract import Decision, GraphPass
from trtllm_lite.builder.passes.remove_padding import NUM_TOKENS, TOKEN_IDS
from trtllm_lite.common.vocabulary import PATCHES, TOKEN_ROWS

NUM_TOKEN_ROWS = "num_token_rows"


def _rewrite(graph: ir.Graph) -> Iterable[Decision]:
    for node in nodes_of(graph, "Where"):
        try:
            rows, token_ids, table = _match(node)
        except MismatchError as mismatch:
            yield Decision(site(node), False, str(mismatch))
            continue
        _name_rows(graph, rows)
        output = value_of(f"{node.name}.embedding", ir.DataType.FLOAT, dims(node.outputs[0]) or ())
        inputs = {"token_ids": token_ids, "weight": table, TOKEN_ROWS: rows}
        graph.insert_before(node, fused_node("Embedding", str(node.name), inputs, {"y": output}, {"scale": 1.0}))
        replace_value(node.outputs[0], output)
        remove_dead(graph)
        yield Decision(site(node), True)


def _match(node: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value]:
    """The rows of patches, the token ids, and the table of others. Raises MismatchError."""
    condition, rows, others = node.inputs
    column = produced_by(condition, "Unsqueeze")
    less = None if column is None else produced_by(column.inputs[0], "Less")
    expect(less is not None and scalar_constant(less.inputs[1]) == 0, "its condition is not that ids are below 0")
    assert less is not None
    cast = produced_by(others, "Cast")
    gather = produced_by(others if cast is None else cast.inputs[0], "Gather")
    expect(gather is not None and weight_tensor(gather.inputs[0]) is not None, "other tokens have no table of rows")
    assert gather is not None
    bounded = produced_by(gather.inputs[1], "Max")
    same_ids = bounded is not None and bounded.inputs[0] is less.inputs[0] and scalar_constant(bounded.inputs[1]) == 0
    expect(same_ids, "the table is not read by the same ids")
    ids = produced_by(less.inputs[0], "Cast")
    expect(ids is not None and ids.inputs[0] is not None and ids.inputs[0].name == TOKEN_IDS, "ids are not those given")
    assert ids is not None
    assert ids.inputs[0] is not None
    table = gather.inputs[0]
    assert rows is not None
    assert table is not None
    return rows, ids.inputs[0], table


def _name_rows(graph: ir.Graph, rows: ir.Value) -> None:
    """Name the patches as the step input, and give all that is computed of them up to ``rows`` as many rows."""
    given = next(value for value in graph.inputs if value.name == PATCHES)
    given.name = TOKEN_ROWS
    waiting = [rows]
    while waiting:
        value = waiting.pop()
        if (dims(value) or ())[:1] != (NUM_TOKENS,):
            continue
        value.shape = ir.Shape([NUM_TOKEN_ROWS, *(dims(value) or ())[1:]])
        producer = value.producer()
        waiting += [operand for operand in ([] if producer is None else producer.inputs) if operand is not None]


def _ensures(graph: ir.Graph) -> Iterable[str]:
    if any(value.name == PATCHES for value in graph.inputs):
        yield f"the input {PATCHES} is not read as {TOKEN_ROWS}"


PATCH_ROWS = GraphPass("patch_rows", _rewrite, ensures=_ensures)
"""Requires that padding was removed."""
