"""Recognises the standard attention subgraph; merge_qkv, paged_attention and ragged_attention read it.

packed rows -> [RMSNormalization of all heads] -> unpack -> Reshape to heads -> [RMSNormalization of each head] ->
Transpose -> [RotaryEmbedding, perhaps partial] -> [RMSNormalization of each head, unless one comes before]
key, value  -> [QuantizeLinear -> DequantizeLinear] -> TensorScatter into the cache at past_lens
Attention(query, key cache, value cache, [window mask], total lengths; causal) -> Transpose -> Reshape -> pack

Between Reshape and Transpose there may also be a LayerNorm of each head, which only merge_qkv and head_layer_norm know.
With sinks, both caches begin with a token of zeros (network/sinks.py).
"""

from dataclasses import dataclass

import onnx_ir as ir

from trtllm_lite.builder.graph import attribute, dims, integers, only_user, produced_by, small_constant, weight_tensor
from trtllm_lite.builder.passes.remove_padding import PACKED_ROWS, PADDED_ROWS, PAST_LENS
from trtllm_lite.network.sinks import without_sink
from trtllm_lite.quantize.kv_cache import Rounding, recognise


class MismatchError(Exception):
    """The subgraph is not what the fused operator computes; the message says where it differs."""


@dataclass(frozen=True)
class Heads:
    """One of query, key, value: packed ``source`` [num_tokens, heads * head_dim] on its way into attention.

    ``norm`` comes before RoPE, or after it (``norm_is_last``).
    """

    source: ir.Value
    heads: int
    head_dim: int
    norm: ir.Value | None
    norm_epsilon: float
    cos: ir.Value | None
    sin: ir.Value | None
    norm_is_last: bool


@dataclass(frozen=True)
class NormOfHeads:
    """LayerNorms of ``heads`` [batch, seq, heads, head_dim], whose ``result`` each head multiplies by its own weight.

    ``weight`` is [heads, head_dim].
    """

    heads: ir.Value
    result: ir.Value
    weight: ir.TensorProtocol
    epsilon: float


@dataclass(frozen=True)
class Cache:
    """One TensorScatter: ``past`` is an input of the graph and ``present`` an output.

    ``new`` is the stored value; with a ``rounding`` the network rounds it before storing.
    """

    past: ir.Value
    present: ir.Value
    new: ir.Value
    rounding: Rounding | None

    @property
    def layer(self) -> str:
        """The number of the layer, with which the names of its caches end."""
        return layer_of(self.past)


def layer_of(past: ir.Value) -> str:
    """The number of the layer that keeps ``past``, an input of the network."""
    return str(past.name).rpartition(".")[2]


def expect(condition: object, message: str) -> None:
    """Raise MismatchError unless ``condition`` holds."""
    if not condition:
        raise MismatchError(message)


def node_of(value: ir.Value | None, op_type: str, problem: str) -> ir.Node:
    """The node of type ``op_type`` that makes ``value``. Raises MismatchError with the ``problem``."""
    node = produced_by(value, op_type)
    expect(node is not None, problem)
    assert node is not None
    return node


def is_packing(gather: ir.Node) -> bool:
    """Whether the Gather ``gather`` packs padded rows."""
    return _is_named(gather.inputs[-1], PACKED_ROWS)


def match_unpacked(value: ir.Value | None, what: str) -> ir.Value:
    """The packed rows that ``value`` unpacks."""
    gather = produced_by(value, "Gather")
    expect(gather is not None and _is_named(gather.inputs[1], PADDED_ROWS), f"the {what} is not made from packed rows")
    assert gather is not None
    assert gather.inputs[0] is not None
    return gather.inputs[0]


def match_heads(value: ir.Value | None, what: str, skip_layer_norms: bool = False) -> Heads:
    """Follow ``value`` [batch, heads, seq, head_dim] back to packed rows. Raises MismatchError.

    With ``skip_layer_norms`` a LayerNorm of each head may be on the way.
    """
    cos = sin = norm = None
    epsilon = 0.0
    last = produced_by(value, "RMSNormalization")
    if last is not None:
        norm, epsilon = _head_norm(last, what)
        value = last.inputs[0]
    rotary = produced_by(value, "RotaryEmbedding")
    if rotary is not None:
        cos, sin = _rotary_tables(rotary, what)
        value = rotary.inputs[0]
    transpose = expect_node(value, "Transpose", what)
    expect(_perm(transpose) == (0, 2, 1, 3), f"the {what} heads are not moved before the sequence")
    value = transpose.inputs[0]
    if norm is None and (node := produced_by(value, "RMSNormalization")) is not None:
        norm, epsilon = _head_norm(node, what)
        value = node.inputs[0]
    if skip_layer_norms and (of_heads := layer_norm_of_heads(value)) is not None:
        value = of_heads.heads
    reshape = expect_node(value, "Reshape", what)
    shape = integers(reshape.inputs[1])
    expect(
        shape is not None and len(shape) == 4 and shape[:2] == [0, 0], f"the {what} is not split as [0, 0, heads, -1]"
    )
    source = match_unpacked(reshape.inputs[0], what)
    heads, head_dim = (dims(reshape.outputs[0]) or (None,) * 4)[2:]
    expect(isinstance(heads, int) and isinstance(head_dim, int), f"the {what} has no static number of heads")
    assert isinstance(heads, int)
    assert isinstance(head_dim, int)
    if rotary is not None:
        rotated = attribute(rotary, "rotary_embedding_dim", 0) or head_dim
        fits = rotated <= head_dim and (dims(cos) or ())[-1:] == (rotated / 2,)
        expect(fits, f"the RoPE table of the {what} heads does not have a column for two rotated elements")
    return Heads(source, heads, head_dim, norm, epsilon, cos, sin, last is not None)


def layer_norm_of_heads(value: ir.Value | None) -> NormOfHeads | None:
    """The LayerNorms without biases of heads that make ``value``, whose weights are float32."""
    product = produced_by(value, "Mul")
    norm = None if product is None else produced_by(product.inputs[0], "LayerNormalization")
    if value is None or product is None or norm is None or attribute(norm, "axis", -1) not in (-1, 3):
        return None
    (heads, ones, *bias), weight = norm.inputs, weight_tensor(product.inputs[1])
    scale = small_constant(ones)
    is_plain = scale is not None and bool((scale == 1).all()) and not any(bias)
    if heads is None or weight is None or not is_plain or weight.dtype != ir.DataType.FLOAT:
        return None
    is_by_head = tuple(weight.shape.numpy()) == tuple((dims(heads) or ())[2:])
    return NormOfHeads(heads, value, weight, float(attribute(norm, "epsilon", 1e-5))) if is_by_head else None


def norm_of_all_heads(rows: ir.Value) -> ir.Node | None:
    """The RMSNormalization of all features, with a float32 weight, that makes packed ``rows``."""
    norm = produced_by(rows, "RMSNormalization")
    if norm is None or attribute(norm, "axis", -1) not in (-1, 1):
        return None
    weight = norm.inputs[1]
    is_vector = weight_tensor(weight) is not None and weight is not None and weight.dtype == ir.DataType.FLOAT
    return norm if is_vector else None


def match_merged_projection(parts: list[ir.Value]) -> ir.Value:
    """The rows that a Split cuts into exactly ``parts``. Raises MismatchError."""
    split = produced_by(parts[0], "Split")
    expect(split is not None and list(split.outputs) == parts, "query, key and value are not one merged projection")
    assert split is not None
    expect(attribute(split, "axis", 0) in (-1, 1), "query, key and value are not one merged projection")
    assert split.inputs[0] is not None
    return split.inputs[0]


def match_states(attention: ir.Node) -> tuple[ir.Value | None, ir.Value | None, ir.Value | None]:
    """The query, and this step's key and value before they are stored in caches, if any. Raises MismatchError."""
    query, key, value = (*attention.inputs, None, None, None)[:3]
    if attribute(attention, "is_causal", 0) == 0:
        return query, key, value
    return query, match_cache(key, "key").new, match_cache(value, "value").new


def match_cache(value: ir.Value | None, what: str) -> Cache:
    """The cache update that makes ``value``. Raises MismatchError."""
    scatter = expect_node(without_sink(value), "TensorScatter", f"{what} cache")
    past, new, indices = (*scatter.inputs, None)[:3]
    expect(attribute(scatter, "mode", "linear") == "linear", f"the {what} cache is a ring buffer")
    expect(attribute(scatter, "axis", -2) in (2, -2), f"the {what} cache is not updated along its sequence axis")
    expect(is_past_lens(indices), f"the {what} cache is not updated at past_lens")
    expect(past is not None and past.is_graph_input(), f"the {what} cache is not an input of the network")
    expect(scatter.outputs[0].is_graph_output(), f"the {what} cache is not an output of the network")
    assert past is not None
    assert new is not None
    rounding = recognise(new)
    return Cache(past, scatter.outputs[0], new if rounding is None else rounding.source, rounding)


def match_packed_output(attention: ir.Node) -> ir.Value:
    """The packed rows [num_tokens, heads * head_dim] of the result. Raises MismatchError."""
    value = attention.outputs[0]
    for op_type in ("Transpose", "Reshape", "Flatten", "Gather"):
        user = only_user(value)
        expect(user is not None and user.op_type == op_type, "its result is not merged into rows of heads")
        assert user is not None
        fits = {
            "Transpose": _perm(user) == (0, 2, 1, 3),
            "Reshape": len(dims(user.outputs[0]) or ()) == 3 and (integers(user.inputs[-1]) or [])[:2] == [0, 0],
            "Flatten": attribute(user, "axis", 1) == 2,
            "Gather": is_packing(user),
        }
        expect(fits[op_type], "its result is not merged into rows of heads")
        value = user.outputs[0]
    return value


def is_past_lens(value: ir.Value | None) -> bool:
    """Whether ``value`` is the input ``past_lens``, perhaps cast to another integer type."""
    while (cast := produced_by(value, "Cast")) is not None:
        value = cast.inputs[0]
    return _is_named(value, PAST_LENS)


def is_sequence_extent(value: ir.Value | None) -> bool:
    """Whether ``value`` is the padded length of this step, read from the shape of an unpacked value."""
    shape = produced_by(value, "Shape")
    if shape is None or attribute(shape, "start", 0) != 1 or attribute(shape, "end", None) != 2:
        return False
    gather = produced_by(shape.inputs[0], "Gather")
    return gather is not None and _is_named(gather.inputs[1], PADDED_ROWS)


def _rotary_tables(node: ir.Node, what: str) -> tuple[ir.Value, ir.Value]:
    plain = not attribute(node, "interleaved", 0) and len(node.inputs) == 3
    expect(plain, f"RoPE of the {what} is not the rotate-half form with a table of packed rows")
    return match_unpacked(node.inputs[1], "cosine table"), match_unpacked(node.inputs[2], "sine table")


def _head_norm(node: ir.Node, what: str) -> tuple[ir.Value, float]:
    weight = node.inputs[1]
    fits = weight_tensor(weight) is not None and weight is not None and weight.dtype == ir.DataType.FLOAT
    expect(fits and attribute(node, "axis", -1) in (-1, 3), f"the {what} norm does not scale heads by a float32 vector")
    assert weight is not None
    return weight, float(attribute(node, "epsilon", 1e-5))


def expect_node(value: ir.Value | None, op_type: str, what: str) -> ir.Node:
    """The node that makes ``value``, which is an ``op_type``. Raises MismatchError."""
    node = produced_by(value, op_type)
    expect(node is not None, f"the {what} does not come from a {op_type}")
    assert node is not None
    return node


def _perm(node: ir.Node) -> tuple[int, ...]:
    return tuple(attribute(node, "perm", ()))


def _is_named(value: ir.Value | None, name: str) -> bool:
    return value is not None and value.is_graph_input() and value.name == name
