"""Gives attention the forms that TensorRT supports: 16-bit caches of a static length, and complete masks.

TensorRT masks either causally or by a mask, so the causal bound is added to a window's mask. It has no soft caps on
scores: capped attention becomes products and a softmax, which read the whole cache.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np
import onnx_ir as ir

from trtllm_lite.builder.graph import Dim, attribute, dims, nodes_of, replace_value
from trtllm_lite.builder.passes.contract import Decision, GraphPass
from trtllm_lite.builder.passes.remove_padding import POSITION_IDS
from trtllm_lite.builder.tensorrt.passes.rewriting import WIDE, cast, cast_result, constant, insert

_BOOL, _INT64 = ir.DataType.BOOL, ir.DataType.INT64
_MASKED = -1e30  # a score whose softmax is zero


def static_caches(narrow: ir.DataType, max_seq_len: int) -> GraphPass:
    """The pass for keys and values of the type ``narrow`` and sequences of up to ``max_seq_len`` tokens."""
    return GraphPass("static_caches", partial(_rewrite, narrow=narrow, max_seq_len=max_seq_len))


def _rewrite(graph: ir.Graph, narrow: ir.DataType, max_seq_len: int) -> Iterator[Decision]:
    for scatter in nodes_of(graph, "TensorScatter"):
        _narrow_cache(graph, scatter, narrow, max_seq_len)
    for node in nodes_of(graph, "Attention"):
        query, mask = node.inputs[0], node.inputs[3] if len(node.inputs) > 3 else None
        assert query is not None
        if mask is not None:
            node.replace_input_with(3, _causal(graph, node, mask, max_seq_len))
            node.attributes["is_causal"] = ir.AttrInt64("is_causal", 0)
        if attribute(node, "softcap", 0.0):
            _write_out(graph, node, max_seq_len)
            yield Decision(str(node.name), False, "TensorRT's attention has no soft cap of scores")
            continue
        node.replace_input_with(0, cast(graph, node, query, narrow, f"{node.name}.query"))
        cast_result(graph, node, narrow)
        yield Decision(str(node.name), True)


def _narrow_cache(graph: ir.Graph, scatter: ir.Node, narrow: ir.DataType, max_seq_len: int) -> None:
    past, new = scatter.inputs[:2]
    assert past is not None
    assert new is not None
    scatter.replace_input_with(1, cast(graph, scatter, new, narrow, f"{scatter.name}.new"))
    batch, heads, _, head_dim = dims(past) or (None,) * 4
    for value in (past, scatter.outputs[0]):
        value.type, value.shape = ir.TensorType(narrow), ir.Shape([batch, heads, max_seq_len, head_dim])


def _causal(graph: ir.Graph, before: ir.Node, mask: ir.Value, max_seq_len: int) -> ir.Value:
    """Return ``mask`` [batch, 1, seq, max_seq] without keys after a query, shared by all layers with the same mask."""
    name = f"{mask.name}.causal"
    known = next((use.node.outputs[0] for use in mask.uses() if use.node.name == name), None)
    if known is not None:
        return known
    seen = _up_to_query(graph, before, max_seq_len)
    return insert(graph, before, "And", [mask, seen], name, _BOOL, _mask_shape(max_seq_len))


def _mask_shape(slots: int) -> list[Dim]:
    return ["batch", 1, "seq", slots]


def _up_to_query(graph: ir.Graph, before: ir.Node, max_seq_len: int) -> ir.Value:
    """Return bool [batch, 1, seq, max_seq]: true where a key's slot is at most the query's position."""
    made = next((node.outputs[0] for node in graph if node.name == "mask.causal"), None)
    if made is not None:
        return made
    position_ids = next(value for value in graph.inputs if value.name == POSITION_IDS)
    slots = constant(graph, "mask.slots", np.arange(max_seq_len, dtype=np.int64))
    axes = constant(graph, "mask.axes", np.array([1, 3], np.int64))
    positions = insert(graph, before, "Unsqueeze", [position_ids, axes], "mask.positions", _INT64, _mask_shape(1))
    full = _mask_shape(max_seq_len)
    return insert(graph, before, "LessOrEqual", [slots, positions], "mask.causal", _BOOL, full)


def _write_out(graph: ir.Graph, node: ir.Node, max_seq_len: int) -> None:
    """Write attention as products and a softmax in float32: softmax(cap * tanh(scale / cap * q k^T) + mask) v.

    The query heads that share a key/value head are concatenated along the sequence.
    """
    query, keys, values = node.inputs[:3]
    assert query is not None
    assert keys is not None
    assert values is not None
    _, num_heads, _, head_dim = dims(query) or (None,) * 4
    num_kv_heads = (dims(keys) or (None,) * 4)[1]
    assert isinstance(num_heads, int)
    assert isinstance(head_dim, int)
    assert isinstance(num_kv_heads, int)
    group, name = num_heads // num_kv_heads, str(node.name)
    mask = node.inputs[3] if len(node.inputs) > 3 else None
    mask = _up_to_query(graph, node, max_seq_len) if mask is None else mask

    def add(op: str, inputs: list[ir.Value], what: str, shape: list[Dim], **attributes: int | list[int]) -> ir.Value:
        return insert(graph, node, op, inputs, f"{name}.{what}", WIDE, shape, attributes)

    def scalar(what: str, value: float) -> ir.Value:
        return constant(graph, f"{name}.{what}", np.array(value, np.float32))

    cap, scale = attribute(node, "softcap"), attribute(node, "scale", head_dim**-0.5)
    by_group = constant(graph, f"{name}.by_group", np.array([0, num_kv_heads, group, -1, head_dim], np.int64))
    flat = constant(graph, f"{name}.flat", np.array([0, num_heads, -1, head_dim], np.int64))
    second = constant(graph, f"{name}.axis", np.array([2], np.int64))
    grouped: list[Dim] = ["batch", num_kv_heads, group, "seq"]
    q = add("Reshape", [query, by_group], "grouped", [*grouped, head_dim])
    shared: list[Dim] = ["batch", num_kv_heads, 1, max_seq_len, head_dim]
    k, v = (
        add("Unsqueeze", [cast(graph, node, cache, WIDE, f"{name}.{what}.wide"), second], what, shared)
        for what, cache in (("keys", keys), ("values", values))
    )
    transposed_shape: list[Dim] = ["batch", num_kv_heads, 1, head_dim, max_seq_len]
    transposed = add("Transpose", [k], "keys.transposed", transposed_shape, perm=[0, 1, 2, 4, 3])
    of_keys = [*grouped, max_seq_len]
    scores = add("MatMul", [q, transposed], "scores", of_keys)
    share = add("Mul", [scores, scalar("share.factor", scale / cap)], "share", of_keys)
    capped = add("Mul", [add("Tanh", [share], "tanh", of_keys), scalar("cap", cap)], "capped", of_keys)
    mask_shape: list[Dim] = ["batch", 1, 1, "seq", max_seq_len]
    seen = insert(graph, node, "Unsqueeze", [mask, second], f"{name}.seen", _BOOL, mask_shape)
    masked = add("Where", [seen, capped, scalar("masked.score", _MASKED)], "masked", of_keys)
    weights = add("Softmax", [masked], "weights", of_keys, axis=-1)
    mixed = add("MatMul", [weights, v], "mixed", [*grouped, head_dim])
    replace_value(node.outputs[0], add("Reshape", [mixed, flat], "merged", ["batch", num_heads, "seq", head_dim]))


__all__ = ["static_caches"]
