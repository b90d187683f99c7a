"""Fuses the norms of all query heads and of all key heads into one QueryKeyNorm of the merged rows, before the split.

merge_qkv leaves Linear -> Split -> RMSNormalization of the first part, and of the second (OLMo 2).
"""

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from trtllm_lite.builder.graph import (
    attribute,
    dims,
    fused_node,
    nodes_of,
    only_user,
    replace_value,
    site,
    value_of,
)
from trtllm_lite.builder.passes.attention_pattern import norm_of_all_heads
from trtllm_lite.builder.passes.contract import Decision, GraphPass


def _rewrite(graph: ir.Graph) -> Iterator[Decision]:
    for split in nodes_of(graph, "Split"):
        norms = [_only_norm(part) for part in split.outputs[:2]]
        if len(split.outputs) != 3 or not any(norms):
            continue
        query, key = norms
        obstacle = _obstacle(query, key)
        yield Decision(site(split), obstacle is None, obstacle or "")
        if query is not None and key is not None and obstacle is None:
            _fuse(graph, split, query, key)


def _only_norm(part: ir.Value) -> ir.Node | None:
    user = only_user(part)
    return None if user is None or not user.outputs else norm_of_all_heads(user.outputs[0])


def _obstacle(query: ir.Node | None, key: ir.Node | None) -> str | None:
    if query is None or key is None:
        return "one of query and key is normalised over all heads, the other is not"
    if attribute(query, "epsilon", 1e-5) != attribute(key, "epsilon", 1e-5):
        return "the norms of query and key differ in epsilon"
    return None


def _fuse(graph: ir.Graph, split: ir.Node, query: ir.Node, key: ir.Node) -> None:
    rows, path = split.inputs[0], str(split.name).removesuffix(".qkv_proj.split") + ".qk_norm"
    assert rows is not None
    inputs = {"x": rows, "query_weight": query.inputs[1], "key_weight": key.inputs[1]}
    normed = value_of(f"{path}.rows", ir.DataType.FLOAT, dims(rows) or ())
    attributes = {"epsilon": float(attribute(query, "epsilon", 1e-5))}
    graph.insert_before(split, fused_node("QueryKeyNorm", path, inputs, {"y": normed}, attributes))
    split.replace_input_with(0, normed)
    for norm, part in zip((query, key), split.outputs, strict=False):
        replace_value(norm.outputs[0], part)


def _ensures(graph: ir.Graph) -> Iterable[str]:
    for split in nodes_of(graph, "Split"):
        query, key, *_ = [*(_only_norm(part) for part in split.outputs[:2]), None, None]
        if query is not None and key is not None and _obstacle(query, key) is None:
            yield f"{split.name} is still followed by norms of its queries and keys"


QUERY_KEY_NORM = GraphPass("query_key_norm", _rewrite, ensures=_ensures)
