"""Stores the features of tokens, from which heads draft (network/drafting.py), in a paged cache and loads them.

The output ``features`` of a network is stored for each token, by PagedStore. PagedLoad reads a head's input
``features``: for each token, the features of the token before it. The head's output ``hidden`` replaces these features
where logits are wanted: after the last known token and after each draft token. The cache uses the block tables of the
first cache group, which is of keys and values; a group of states may follow.
"""

from collections.abc import Iterable

import onnx_ir as ir

from trtllm_lite.builder.graph import dims, fused_node, replace_value, value_of
from trtllm_lite.builder.passes.contract import Decision, GraphPass
from trtllm_lite.builder.passes.paged_attention import BLOCK_TABLES, NUM_BLOCKS, TOKENS_PER_BLOCK
from trtllm_lite.builder.passes.remove_padding import CU_SEQLENS, NUM_TOKENS, POSITION_IDS
from trtllm_lite.common.vocabulary import FEATURES, HIDDEN, LOGITS_INDICES


def has_features(graph: ir.Graph) -> bool:
    """Whether a network, standard or fused, makes or reads features."""
    return any(value.name == FEATURES for value in (*graph.inputs, *graph.outputs))


def reads_features(graph: ir.Graph) -> bool:
    """Whether a standard network reads features."""
    return _named(graph.inputs, FEATURES) is not None


def _rewrite(graph: ir.Graph) -> list[Decision]:
    read, made, hidden = (
        _named(values, name)
        for values, name in ((graph.inputs, FEATURES), (graph.outputs, FEATURES), (graph.outputs, HIDDEN))
    )
    rows = hidden or made
    if rows is None:
        return []
    size = (dims(rows) or (None,))[-1]
    cache = value_of(FEATURES, ir.DataType.FLOAT, [NUM_BLOCKS, TOKENS_PER_BLOCK, size])
    places = {name: _step_input(graph, name) for name in (POSITION_IDS, CU_SEQLENS, BLOCK_TABLES)}
    if read is not None:
        _load(graph, read, cache, places)
    graph.inputs.append(cache)
    indices = {} if hidden is None else {"indices": _step_input(graph, LOGITS_INDICES)}
    stored = value_of(f"{FEATURES}_out", ir.DataType.FLOAT, dims(cache) or ())
    operands = {"x": rows, "cache": cache, **places, **indices}
    graph.append(fused_node("PagedStore", f"{FEATURES}.store", operands, {"cache_out": stored}))
    position = graph.outputs.index(rows)
    rows.name = f"{FEATURES}.rows"
    graph.outputs[position] = stored
    return [Decision(FEATURES, True)]


def _load(graph: ir.Graph, read: ir.Value, cache: ir.Value, places: dict[str, ir.Value]) -> None:
    loaded = value_of(f"{FEATURES}.before", ir.DataType.FLOAT, dims(read) or ())
    node = fused_node("PagedLoad", f"{FEATURES}.load", {"cache": cache, **places}, {"y": loaded})
    graph.insert_before(graph[0], node)
    replace_value(read, loaded)
    graph.inputs.remove(read)


def _named(values: Iterable[ir.Value], name: str) -> ir.Value | None:
    return next((value for value in values if value.name == name), None)


def _step_input(graph: ir.Graph, name: str) -> ir.Value:
    """The input ``name`` of a step; position_ids may be gone by now, in networks without RoPE."""
    found = _named(graph.inputs, name)
    if found is None:
        found = value_of(name, ir.DataType.INT32, [NUM_TOKENS])
        graph.inputs.insert(0, found)
    return found


def _requires(graph: ir.Graph) -> Iterable[str]:
    if _named(graph.inputs, LOGITS_INDICES) is None:
        yield "rows with logits are not known yet"


def _ensures(graph: ir.Graph) -> Iterable[str]:
    if any(value.name in (FEATURES, HIDDEN) for value in graph.outputs):
        yield "features are an output still"


STORE_FEATURES = GraphPass("features", _rewrite, _requires, _ensures)
