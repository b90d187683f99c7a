"""Attention over latents (network/latent_attention.py) becomes one LatentAttention.

Its caches, past_rotary.i (rotated parts of keys) and past_latent.i, become paged ones, as in paged_attention,
which also removes what is left of padding.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from trtllm_lite.builder.graph import (
    Dim,
    attribute,
    dims,
    fused_node,
    nodes_of,
    only_user,
    produced_by,
    remove_dead,
    replace_value,
    site,
    value_of,
    weight_tensor,
)
from trtllm_lite.builder.passes.attention_pattern import (
    Cache,
    Heads,
    MismatchError,
    expect,
    match_cache,
    match_heads,
    match_merged_projection,
    match_packed_output,
    norm_of_all_heads,
)
from trtllm_lite.builder.passes.contract import Decision, GraphPass
from trtllm_lite.builder.passes.paged_attention import (
    NUM_BLOCKS,
    TOKENS_PER_BLOCK,
    add_shared_inputs,
    check_attributes,
    is_total_length,
)
from trtllm_lite.builder.passes.remove_padding import PADDED_ROWS
from trtllm_lite.network.tensors import extents

_FLOAT = ir.DataType.FLOAT


@dataclass(frozen=True)
class _Match:
    query: ir.Value
    latent: ir.Value
    norm: ir.Node
    rotated: Heads
    key_up: ir.Value
    value_up: ir.Value
    rotary_cache: Cache
    latent_cache: Cache
    scale: float
    output: ir.Value


def _rewrite(graph: ir.Graph) -> Iterator[Decision]:
    for attention in nodes_of(graph, "Attention"):
        if produced_by(attention.inputs[0], "Concat") is None:
            continue  # the pass paged_attention handles it
        try:
            match = _match(attention)
        except MismatchError as mismatch:
            yield Decision(site(attention), False, str(mismatch))
            continue
        _fuse(graph, attention, match)
        yield Decision(site(attention), True)
    remove_dead(graph)


def _match(attention: ir.Node) -> _Match:
    """Collect everything that the fused operator needs. Raises MismatchError."""
    query, key, value, mask, past_key, past_value, lengths = (*attention.inputs, *[None] * 7)[:7]
    check_attributes(attention)
    expect(mask is past_key is past_value is None, "it has a mask, or a past of its own")
    expect(is_total_length(lengths), "its key lengths are not past_lens plus the length of this step")
    expect(attribute(attention, "softcap", 0.0) == 0, "its scores have a softcap")
    absorbed, rotated_part = _halves(query, "query")
    latents, keys = _halves(key, "key")
    expect(latents is value, "its values are not the latents of its keys")
    product = produced_by(absorbed, "MatMul")
    expect(product is not None, "the plain part of its query is not multiplied with key_up")
    assert product is not None
    plain, rotated = match_heads(product.inputs[0], "query"), match_heads(rotated_part, "rotated query")
    rotary_cache, latent_cache = match_cache(keys, "rotary"), match_cache(latents, "latent")
    expect(rotary_cache.rounding is latent_cache.rounding is None, "its caches are rounded, which latents cannot be")
    shared, latent = match_heads(rotary_cache.new, "key"), match_heads(latent_cache.new, "latent")
    is_rotated = rotated.cos is not None and (rotated.cos, rotated.sin) == (shared.cos, shared.sin)
    expect(is_rotated and shared.heads == latent.heads == 1, "its keys are not rotated as its queries are")
    expect(plain.cos is latent.cos is None, "more than the rotated parts of queries and keys is rotated")
    norm = norm_of_all_heads(latent.source)
    expect(norm is not None and norm.inputs[0] is not None, "its latents are not normalised")
    assert norm is not None
    assert norm.inputs[0] is not None
    values, value_up = _match_values(attention)
    return _Match(
        query=match_merged_projection([plain.source, rotated.source]),
        latent=match_merged_projection([norm.inputs[0], shared.source]),
        norm=norm,
        rotated=rotated,
        key_up=_weight(product.inputs[1]),
        value_up=value_up,
        rotary_cache=rotary_cache,
        latent_cache=latent_cache,
        scale=float(attribute(attention, "scale", 0.0) or 1.0),
        output=match_packed_output(values),
    )


def _halves(value: ir.Value | None, what: str) -> tuple[ir.Value | None, ir.Value | None]:
    concat = produced_by(value, "Concat")
    is_pair = concat is not None and len(concat.inputs) == 2 and attribute(concat, "axis", 0) in (-1, 3)
    expect(is_pair, f"its {what} is not made of a plain part and a rotated one")
    assert concat is not None
    return concat.inputs[0], concat.inputs[1]


def _match_values(attention: ir.Node) -> tuple[ir.Node, ir.Value]:
    """The product that makes values from latents, and its weight."""
    product = only_user(attention.outputs[0])
    is_product = product is not None and product.op_type == "MatMul" and product.inputs[0] is attention.outputs[0]
    expect(is_product, "its result is not multiplied with value_up")
    assert product is not None
    transposed = produced_by(product.inputs[1], "Transpose")
    is_transposed = transposed is not None and list(attribute(transposed, "perm", ())) == [0, 2, 1]
    expect(is_transposed, "its result is multiplied with another matrix than value_up")
    assert transposed is not None
    return product, _weight(transposed.inputs[0])


def _weight(value: ir.Value | None) -> ir.Value:
    """The stored weight of heads."""
    cast = produced_by(value, "Cast")
    stored = value if cast is None else cast.inputs[0]
    tensor = weight_tensor(stored)
    expect(tensor is not None and len(extents(tensor)) == 3, "heads have no weights of their own")
    assert stored is not None
    return stored


def _fuse(graph: ir.Graph, attention: ir.Node, match: _Match) -> None:
    past_lens = add_shared_inputs(graph)
    sizes = {"rotary_cache": match.rotated.head_dim, "latent_cache": extents_of(match.value_up)[-1]}
    shapes: dict[str, list[Dim]] = {kind: [NUM_BLOCKS, 1, TOKENS_PER_BLOCK, size] for kind, size in sizes.items()}
    layer = match.rotary_cache.layer
    pasts = {kind: value_of(f"{kind}.{layer}", _FLOAT, shape) for kind, shape in shapes.items()}
    presents = {f"{kind}_out": value_of(f"{kind}_out.{layer}", _FLOAT, shape) for kind, shape in shapes.items()}
    output = value_of(f"{attention.name}.paged", _FLOAT, dims(match.output) or ())
    inputs = {
        "query": match.query,
        "latent": match.latent,
        "latent_norm": match.norm.inputs[1],
        "cos": match.rotated.cos,
        "sin": match.rotated.sin,
        "key_up": match.key_up,
        "value_up": match.value_up,
        **pasts,
        **{str(value.name): value for value in past_lens},
    }
    epsilon = float(attribute(match.norm, "epsilon", 1e-5))
    attributes = {"scale": match.scale, "cache_group": 0, "norm_epsilon": epsilon}
    outputs = {"y": output, **presents}
    graph.insert_before(attention, fused_node("LatentAttention", str(attention.name), inputs, outputs, attributes))
    replace_value(match.output, output)
    for cache, kind in ((match.rotary_cache, "rotary_cache"), (match.latent_cache, "latent_cache")):
        graph.inputs[graph.inputs.index(cache.past)] = pasts[kind]
        graph.outputs[graph.outputs.index(cache.present)] = presents[f"{kind}_out"]


def extents_of(weight: ir.Value) -> tuple[int, ...]:
    """The shape of a weight."""
    tensor = weight_tensor(weight)
    assert tensor is not None
    return extents(tensor)


def _requires(graph: ir.Graph) -> Iterable[str]:
    if PADDED_ROWS not in {value.name for value in graph.inputs}:
        yield "padding is not removed yet"


LATENT_ATTENTION = GraphPass("latent_attention", _rewrite, _requires)
