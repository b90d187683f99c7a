"""Rotary tables, sliding-window masks and the attention block with its KV cache.

The cache of a layer is float32 [batch, kv_heads, max_seq, head_dim]; row b holds ``past_lens[b]`` tokens. New tokens
are written behind them by TensorScatter, and Attention with ``nonpad_kv_seqlen`` aligns its causal mask with the end.
Short rows are padded at the right: what pad tokens compute and write is garbage that no real token attends to, and the
next step overwrites it. Position ids are past_lens[b] + 0, 1, …, for pads too.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trtllm_lite.network.blocks import LinearShape, linear, rms_norm
from trtllm_lite.network.graph import GraphBuilder
from trtllm_lite.network.rope import Rope
from trtllm_lite.network.spec import DecoderSpec


@dataclass(frozen=True)
class Inputs:
    """Graph inputs: input_ids and position_ids int64 [batch, seq], past_lens int64 [batch], a cache pair per layer."""

    input_ids: ir.Value
    position_ids: ir.Value
    past_lens: ir.Value
    past_keys: tuple[ir.Value, ...]
    past_values: tuple[ir.Value, ...]


@dataclass(frozen=True)
class Context:
    """What all layers share.

    cos and sin are float32 [batch, seq, head_dim/2]; ``nonpad`` int64 [batch], the tokens of each row once the new
    ones are in; ``masks`` by window, bool [batch, 1, seq, max_seq]; ``dtype`` how matrices are stored.
    """

    graph: GraphBuilder
    spec: DecoderSpec
    dtype: ir.DataType
    inputs: Inputs
    cos: ir.Value
    sin: ir.Value
    nonpad: ir.Value
    masks: dict[int, ir.Value]


def shared_context(graph: GraphBuilder, inputs: Inputs, spec: DecoderSpec, dtype: ir.DataType) -> Context:
    """Everything that does not depend on the layer."""
    cos, sin = _rotary_table(graph, inputs.position_ids, spec.rope)
    new_tokens = graph.op("Shape", [inputs.input_ids], "nonpad.new_tokens", {"start": 1, "end": 2})
    nonpad = graph.op("Add", [inputs.past_lens, new_tokens], "nonpad")
    windows = sorted({layer.window for layer in spec.layers if layer.window})
    masks = {window: _window_mask(graph, inputs, window) for window in windows}
    return Context(graph, spec, dtype, inputs, cos, sin, nonpad, masks)


def _rotary_table(graph: GraphBuilder, position_ids: ir.Value, rope: Rope) -> tuple[ir.Value, ir.Value]:
    inv_freq = graph.constant("rope.inv_freq", np.array(rope.inv_freq, np.float32))
    with graph.scope("rope"):
        positions = graph.op("Cast", [position_ids], "positions", {"to": ir.DataType.FLOAT.value})
        column = graph.op("Unsqueeze", [positions, graph.constant("axis.last", np.array([-1]))], "column")
        angles = graph.op("Mul", [column, inv_freq], "angles")
        cos, sin = graph.op("Cos", [angles], "cos"), graph.op("Sin", [angles], "sin")
        if rope.attention_factor == 1:
            return cos, sin
        factor = graph.constant("rope.attention_factor", np.array(rope.attention_factor, np.float32))
        return graph.op("Mul", [cos, factor], "cos.scaled"), graph.op("Mul", [sin, factor], "sin.scaled")


def _window_mask(graph: GraphBuilder, inputs: Inputs, window: int) -> ir.Value:
    """True where a key slot lies inside the window: slot > position - window. The causal half is Attention's own."""
    with graph.scope(f"mask.window_{window}"):
        length = graph.op("Shape", [inputs.past_keys[0]], "max_seq.shape", {"start": 2, "end": 3})
        max_seq = graph.op("Squeeze", [length], "max_seq")
        zero, one = graph.constant("zero", np.array(0)), graph.constant("one", np.array(1))
        slots = graph.op("Range", [zero, max_seq, one], "slots")
        axes = graph.constant("axes.head_and_slot", np.array([1, 3]))
        positions = graph.op("Unsqueeze", [inputs.position_ids, axes], "positions")
        width = graph.constant(f"window_{window}", np.array(window))
        return graph.op("Greater", [slots, graph.op("Sub", [positions, width], "start")], "inside")


def attention_block(
    context: Context, x: ir.Value, number: int, prefixes: dict[str, str]
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Grouped-query attention of layer ``number`` over normalised activations [batch, seq, hidden].

    Returns the block's output [batch, seq, hidden] and the updated key and value caches.
    """
    graph, spec, layer = context.graph, context.spec, context.spec.layers[number]
    query, key, value = (_heads(context, x, number, prefixes, role) for role in "qkv")
    query = graph.op("RotaryEmbedding", [query, context.cos, context.sin], "q_rope")
    key = graph.op("RotaryEmbedding", [key, context.cos, context.sin], "k_rope")
    past_key, past_value = context.inputs.past_keys[number], context.inputs.past_values[number]
    lens, axis = context.inputs.past_lens, {"axis": 2}
    keys = graph.op("TensorScatter", [past_key, key, lens], "k_cache", axis, f"present_key.{number}")
    values = graph.op("TensorScatter", [past_value, value, lens], "v_cache", axis, f"present_value.{number}")
    mask = context.masks[layer.window] if layer.window else None
    mixed = graph.op(
        "Attention",
        [query, keys, values, mask, None, None, context.nonpad],
        "attention",
        {"is_causal": 1, "scale": spec.attention_scale},
    )
    tokens_first = graph.op("Transpose", [mixed], "merge.transpose", {"perm": [0, 2, 1, 3]})
    merged = graph.op("Reshape", [tokens_first, graph.constant("shape.merge_heads", np.array([0, 0, -1]))], "merge")
    shape = LinearShape(spec.num_attention_heads * spec.head_dim, spec.hidden_size, layer.output_bias)
    return linear(graph, merged, prefixes["o_proj"], shape, context.dtype, "o_proj"), keys, values


def _heads(context: Context, x: ir.Value, number: int, prefixes: dict[str, str], role: str) -> ir.Value:
    """Project to queries, keys or values (``role`` q, k or v) and split: [batch, heads, seq, head_dim]."""
    graph, spec, layer = context.graph, context.spec, context.spec.layers[number]
    heads = spec.num_attention_heads if role == "q" else spec.num_key_value_heads
    shape = LinearShape(spec.hidden_size, heads * spec.head_dim, layer.qkv_bias)
    projected = linear(graph, x, prefixes[f"{role}_proj"], shape, context.dtype, f"{role}_proj")
    split = graph.constant(f"shape.{heads}_heads", np.array([0, 0, heads, spec.head_dim]))
    by_head = graph.op("Reshape", [projected, split], f"{role}_heads")
    if layer.qk_norm and role != "v":
        by_head = rms_norm(graph, by_head, prefixes[f"{role}_norm"], spec.head_dim, spec.norm_epsilon, f"{role}_norm")
    return graph.op("Transpose", [by_head], f"{role}_heads.transpose", {"perm": [0, 2, 1, 3]})
