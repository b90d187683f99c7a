"""Fuses the LayerNorms of query heads and of key heads into one HeadLayerNorm of the merged rows, before the split.

merge_qkv leaves Linear -> Split -> unpack -> Reshape to heads -> LayerNormalization -> Mul by the heads' weights.
"""

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from trtllm_lite.builder.graph import (
    dims,
    fused_node,
    nodes_of,
    only_user,
    replace_value,
    site,
    value_of,
)
from trtllm_lite.builder.passes.attention_pattern import NormOfHeads, layer_norm_of_heads
from trtllm_lite.builder.passes.contract import Decision, GraphPass
from trtllm_lite.network.tensors import add_initializer, concatenate


def _rewrite(graph: ir.Graph) -> Iterator[Decision]:
    for split in nodes_of(graph, "Split"):
        norms = [_norm(part) for part in split.outputs[:2]]
        if len(split.outputs) != 3 or not any(norms):
            continue
        query, key = norms
        if query is None or key is None or query.epsilon != key.epsilon:
            yield Decision(site(split), False, "query and key heads are not normalised alike")
            continue
        yield Decision(site(split), True)
        _fuse(graph, split, query, key)


def _norm(part: ir.Value) -> NormOfHeads | None:
    """The norm of the heads that the packed rows ``part`` become."""
    value = part
    for op_type in ("Gather", "Reshape", "LayerNormalization", "Mul"):
        user = only_user(value)
        if user is None or user.op_type != op_type:
            return None
        value = user.outputs[0]
    return layer_norm_of_heads(value)


def _fuse(graph: ir.Graph, split: ir.Node, query: NormOfHeads, key: NormOfHeads) -> None:
    rows, path = split.inputs[0], str(split.name).removesuffix(".qkv_proj.split") + ".qk_norm"
    assert rows is not None
    weight = add_initializer(graph, f"{path}.weight", concatenate([query.weight, key.weight]))
    normed = value_of(f"{path}.rows", ir.DataType.FLOAT, dims(rows) or ())
    node = fused_node("HeadLayerNorm", path, {"x": rows, "weight": weight}, {"y": normed}, {"epsilon": query.epsilon})
    graph.insert_before(split, node)
    split.replace_input_with(0, normed)
    for norm in (query, key):
        replace_value(norm.result, norm.heads)


def _ensures(graph: ir.Graph) -> Iterable[str]:
    for split in nodes_of(graph, "Split"):
        if len(split.outputs) == 3 and all(_norm(part) for part in split.outputs[:2]):
            yield f"{split.name} is still followed by norms of its query and key heads"


HEAD_LAYER_NORM = GraphPass("head_layer_norm", _rewrite, ensures=_ensures)
