"""Fuses the attention of an encoder (heads, RoPE, masks, attention in both directions) into one RaggedAttention.

Sequences are told apart by cu_seqlens instead of by seq_lens and padding. No padded value remains.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from trtllm_lite.builder.graph import attribute, dims, fused_node, nodes_of, replace_value, site, value_of
from trtllm_lite.builder.passes.attention_pattern import (
    Heads,
    MismatchError,
    expect,
    match_heads,
    match_merged_projection,
    match_packed_output,
)
from trtllm_lite.builder.passes.contract import Decision, GraphPass
from trtllm_lite.builder.passes.encoder_masks import match_distance_bias, match_window
from trtllm_lite.builder.passes.remove_padding import cu_seqlens_of, drop_padding, is_seq_lens


@dataclass(frozen=True)
class _Match:
    heads: Heads
    qkv: ir.Value
    window: int
    bias: ir.Value | None
    scale: float
    output: ir.Value


def _rewrite(graph: ir.Graph) -> Iterator[Decision]:
    for attention in nodes_of(graph, "Attention"):
        try:
            match = _match(attention)
        except MismatchError as mismatch:
            yield Decision(site(attention), False, str(mismatch))
            continue
        _fuse(graph, attention, match)
        yield Decision(site(attention), True)
    drop_padding(graph)


def _match(attention: ir.Node) -> _Match:
    """Collect everything that the fused operator needs. Raises MismatchError."""
    query_in, key_in, value_in, mask, past_key, past_value, lengths = (*attention.inputs, *[None] * 7)[:7]
    expect(attribute(attention, "is_causal", 0) == 0, "it is causal, in a network without caches")
    expect(attribute(attention, "softcap", 0.0) == 0, "its scores have a softcap")
    expect(past_key is None and past_value is None, "it has a past, in a network without caches")
    expect(is_seq_lens(lengths), "its key lengths are not seq_lens")
    expect(len([output for output in attention.outputs if output.name]) == 1, "its scores or presents are read")
    precision = attribute(attention, "softmax_precision", ir.DataType.FLOAT)
    expect(precision == ir.DataType.FLOAT, f"it asks for a softmax in type {precision}, expected float32")
    parts = [match_heads(value, what) for value, what in ((query_in, "query"), (key_in, "key"), (value_in, "value"))]
    expect(len({(part.heads, part.head_dim) for part in parts}) == 1, "queries, keys and values differ in their heads")
    query, key, value = parts
    expect(all(part.norm is None for part in parts), "heads are normalised")
    expect((query.cos, query.sin) == (key.cos, key.sin), "query and key use different RoPE tables")
    expect(value.cos is None, "the value is rotated")
    scale = float(attribute(attention, "scale", 0.0) or query.head_dim**-0.5)
    window, bias = match_window(mask), match_distance_bias(mask)
    is_known = mask is None or window is not None or bias is not None
    expect(is_known, "its mask is neither a window nor a bias by distance")
    qkv = match_merged_projection([part.source for part in parts])
    return _Match(query, qkv, window or 0, bias, scale, match_packed_output(attention))


def _fuse(graph: ir.Graph, attention: ir.Node, match: _Match) -> None:
    output = value_of(f"{attention.name}.ragged", ir.DataType.FLOAT, dims(match.output) or ())
    heads = match.heads
    inputs = {"qkv": match.qkv, "cos": heads.cos, "sin": heads.sin, "cu_seqlens": cu_seqlens_of(graph)}
    inputs["distance_bias"] = match.bias
    attributes = {"num_heads": heads.heads, "head_dim": heads.head_dim, "scale": match.scale, "window": match.window}
    node = fused_node("RaggedAttention", str(attention.name), inputs, {"y": output}, attributes)
    graph.insert_before(attention, node)
    replace_value(match.output, output)


RAGGED_ATTENTION = GraphPass("ragged_attention", _rewrite)
"""Requires that padding was removed, and queries, keys and values merged (merge_qkv)."""
