"""Fuses the Reshape by which a vision tower makes one row of several, one after the other, into MergeRows."""

from collections.abc import Iterator

import onnx_ir as ir

from trtllm_lite.builder.graph import attribute, dims, fused_node, nodes_of, replace_value, site, value_of
from trtllm_lite.builder.passes.contract import Decision, GraphPass
from trtllm_lite.builder.passes.remove_padding import NUM_IMAGE_ROWS, NUM_TOKENS
from trtllm_lite.plugins.schema import DOMAIN


def _rewrite(graph: ir.Graph) -> Iterator[Decision]:
    for node in nodes_of(graph, "Reshape"):
        (rows, features), (made, width) = _shape(node.inputs[0]), _shape(node.outputs[0])
        if made != NUM_IMAGE_ROWS:
            continue  # attention splits heads by such an operator
        is_whole = isinstance(features, int) and isinstance(width, int) and width % features == 0
        if rows != NUM_TOKENS or not is_whole:
            yield Decision(site(node), False, "it does not make one row of several")
            continue
        assert isinstance(features, int)
        assert isinstance(width, int)
        output = value_of(f"{node.name}.rows", ir.DataType.FLOAT, (made, width))
        merged = {"merged": width // features}
        graph.insert_before(node, fused_node("MergeRows", str(node.name), {"x": node.inputs[0]}, {"y": output}, merged))
        replace_value(node.outputs[0], output)
        yield Decision(site(node), True)


def merged_rows(graph: ir.Graph) -> int:
    """How many rows of the network become one; 1 if none do."""
    return max((attribute(node, "merged", 1) for node in nodes_of(graph, "MergeRows", DOMAIN)), default=1)


def _shape(value: ir.Value | None) -> tuple[int | str | None, int | str | None]:
    shape = dims(value) or ()
    return (shape[0], shape[1]) if len(shape) == 2 else (None, None)


MERGE_ROWS = GraphPass("merge_rows", _rewrite)
"""Requires that padding was removed."""
