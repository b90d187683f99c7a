"""Fuses the attention subgraph (head norms, RoPE, cache update, masks, attention) into one PagedAttention.

The contiguous caches past_key.i, past_value.i become paged ones, key_cache.i and value_cache.i, shared by all sequences
and addressed through block tables; sequences are told apart by cu_seqlens. No padded value remains. If the network
rounds keys and values, or values alone, these caches have the type and the scale of the rounding; otherwise they are
float32, in place of which a backend may choose another type. An attention that reads the caches which an earlier one
has updated appends nothing to them (Gemma 4).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from trtllm_lite.builder.graph import (
    Dim,
    attribute,
    dims,
    fused_by,
    fused_node,
    nodes_of,
    produced_by,
    remove_dead,
    remove_unused_inputs,
    replace_value,
    results,
    site,
    value_of,
)
from trtllm_lite.builder.passes.attention_pattern import (
    Cache,
    Heads,
    MismatchError,
    expect,
    is_past_lens,
    is_sequence_extent,
    match_cache,
    match_heads,
    match_merged_projection,
    match_packed_output,
)
from trtllm_lite.builder.passes.contract import Decision, GraphPass
from trtllm_lite.builder.passes.remove_padding import CU_SEQLENS, NUM_SEQS, PACKED_ROWS, PADDED_ROWS, PAST_LENS
from trtllm_lite.builder.passes.sinks import match_sinks
from trtllm_lite.builder.passes.temperature import match_temperature
from trtllm_lite.builder.passes.window_mask import match_chunk, match_first_position, match_window
from trtllm_lite.network.attention import Temperature
from trtllm_lite.network.dtypes import ONNX
from trtllm_lite.quantize.kv_cache import Rounding

BLOCK_TABLES = "block_tables"
NUM_BLOCKS, TOKENS_PER_BLOCK = "num_blocks", "tokens_per_block"


@dataclass(frozen=True)
class _Appended:
    """The keys and values that an attention appends to caches of its own."""

    key: Heads
    value: Heads
    key_cache: Cache
    value_cache: Cache

    @property
    def roundings(self) -> tuple[Rounding | None, Rounding | None]:
        """The roundings of keys and of values."""
        return self.key_cache.rounding, self.value_cache.rounding


@dataclass(frozen=True)
class _Match:
    """What the operator needs. ``appended`` is None if the attention reads the caches of the operator ``owner``."""

    query: Heads
    appended: _Appended | None
    owner: ir.Node | None
    qkv: ir.Value
    window: int
    chunked: bool
    temperature: Temperature | None
    first_position: int
    scale: float
    softcap: float
    sinks: ir.Value | None
    output: ir.Value


def _rewrite(graph: ir.Graph) -> Iterator[Decision]:
    shared = add_shared_inputs(graph)
    for attention in nodes_of(graph, "Attention"):
        try:
            match = _match(attention)
        except MismatchError as mismatch:
            yield Decision(site(attention), False, str(mismatch))
            continue
        _fuse(graph, attention, match, shared)
        yield Decision(site(attention), True)
    remove_dead(graph)
    padded = [value for value in graph.inputs if value.name in (PADDED_ROWS, PACKED_ROWS, CU_SEQLENS, BLOCK_TABLES)]
    remove_unused_inputs(graph, padded)


def _match(attention: ir.Node) -> _Match:
    """Collect everything that the fused operator needs. Raises MismatchError."""
    query_in, key_in, value_in, _, past_key, past_value = (*attention.inputs, *[None] * 6)[:6]
    check_attributes(attention)
    sinks = match_sinks(attention)
    expect(past_key is None and past_value is None, "it concatenates a past of its own instead of updating a cache")
    expect(is_total_length(sinks.lengths), "its key lengths are not past_lens plus the length of this step")
    query_in, temperature = match_temperature(query_in)
    query = match_heads(query_in, "query")
    owner = _match_owner(query, key_in, value_in)
    appended = None if owner is not None else _match_appended(query, key_in, value_in)
    scale = float(attribute(attention, "scale", 0.0) or query.head_dim**-0.5)
    softcap = float(attribute(attention, "softcap", 0.0))
    output = match_packed_output(attention)
    parts = [query] if appended is None else [query, appended.key, appended.value]
    qkv = query.source if appended is None else match_merged_projection([part.source for part in parts])
    first, chunk = match_first_position(sinks.mask), match_chunk(sinks.mask)
    window = 0 if first else chunk or match_window(sinks.mask)
    mask = window, chunk > 0, temperature, first
    return _Match(query, appended, owner, qkv, *mask, scale, softcap, sinks.scores, output)


def _match_owner(query: Heads, keys: ir.Value | None, values: ir.Value | None) -> ir.Node | None:
    """The fused operator that has updated the caches ``keys`` and ``values``, if there is one. Raises MismatchError."""
    owner = fused_by(keys, "PagedAttention")
    if owner is None:
        return None
    made = results(owner)
    expect((keys, values) == (made["key_cache_out"], made["value_cache_out"]), "keys and values are of two layers")
    _, kv_heads, head_dim, _ = dims(made["key_cache_out"]) or (None,) * 4
    expect(isinstance(kv_heads, int) and query.heads % kv_heads == 0, "query heads are no multiple of key/value heads")
    expect(query.head_dim == head_dim, "query heads differ in size from the key and value heads of an earlier layer")
    return owner


def _match_appended(query: Heads, key_in: ir.Value | None, value_in: ir.Value | None) -> _Appended:
    """The keys and values that are appended to the caches. Raises MismatchError."""
    key_cache, value_cache = match_cache(key_in, "key"), match_cache(value_in, "value")
    key, value = match_heads(key_cache.new, "key"), match_heads(value_cache.new, "value")
    _check_heads(query, key, value)
    types = [None if cache.rounding is None else cache.rounding.to for cache in (key_cache, value_cache)]
    expect(
        types[0] in (None, types[1]),
        f"its keys are stored as {types[0] or 'they are'}, values as {types[1] or 'they are'}",
    )
    return _Appended(key, value, key_cache, value_cache)


def check_attributes(attention: ir.Node) -> None:
    """Raise MismatchError for what no fused attention computes."""
    expect(attribute(attention, "is_causal", 0) == 1, "it is not causal")
    softcap = attribute(attention, "softcap", 0.0)
    expect(softcap >= 0, f"its softcap is {softcap}, expected a cap, or 0 for none")
    expect(len([output for output in attention.outputs if output.name]) == 1, "its scores or presents are read")
    precision = attribute(attention, "softmax_precision", ir.DataType.FLOAT)
    expect(precision == ir.DataType.FLOAT, f"it asks for a softmax in type {precision}, expected float32")


def _check_heads(query: Heads, key: Heads, value: Heads) -> None:
    expect(key.heads == value.heads and query.heads % key.heads == 0, "query heads are no multiple of key/value heads")
    expect(len({heads.head_dim for heads in (query, key, value)}) == 1, "query, key and value heads differ in size")
    expect((query.cos, query.sin) == (key.cos, key.sin), "query and key use different RoPE tables")
    expect(value.cos is None, "the value is rotated")
    normed = [heads for heads in (query, key, value) if heads.norm is not None]
    epsilons = {heads.norm_epsilon for heads in normed}
    expect(len(epsilons) <= 1, "the norms of query, key and value differ in epsilon")
    both = query.norm is not None and key.norm is not None
    in_order = not both or query.norm_is_last == key.norm_is_last
    expect(in_order, "one of query and key is normalised before RoPE, the other after it")


def is_total_length(value: ir.Value | None) -> bool:
    """Whether ``value`` is past_lens plus the padded length of this step."""
    add = produced_by(value, "Add")
    if add is None:
        return False
    left, right = add.inputs
    return any(is_past_lens(a) and is_sequence_extent(b) for a, b in ((left, right), (right, left)))


def add_shared_inputs(graph: ir.Graph) -> list[ir.Value]:
    """Add cu_seqlens, past_lens and block_tables: where sequences lie in the packed rows and in the cache."""
    inputs = {str(value.name): value for value in graph.inputs}
    past_lens = inputs[PAST_LENS]
    if CU_SEQLENS in inputs:
        return [inputs[CU_SEQLENS], past_lens, inputs[BLOCK_TABLES]]
    cu_seqlens = value_of(CU_SEQLENS, ir.DataType.INT32, [f"{NUM_SEQS}_plus_1"])
    block_tables = value_of(BLOCK_TABLES, ir.DataType.INT32, ["num_tables", "max_blocks_per_seq"])
    position = graph.inputs.index(past_lens)
    graph.inputs[position : position + 1] = [cu_seqlens, past_lens, block_tables]
    return [cu_seqlens, past_lens, block_tables]


def _fuse(graph: ir.Graph, attention: ir.Node, match: _Match, shared: list[ir.Value]) -> None:
    query, appended = match.query, match.appended
    caches = _own_caches(match.appended) if match.owner is None else _caches_of(match.owner)
    output = value_of(f"{attention.name}.paged", ir.DataType.FLOAT, dims(match.output) or ())
    inputs = {"qkv": match.qkv, "cos": query.cos, "sin": query.sin, **caches.before}
    inputs |= {str(value.name): value for value in shared}
    inputs |= {"query_norm": query.norm, "sinks": match.sinks}
    normed = [query]
    if appended is not None:
        inputs |= {"key_norm": appended.key.norm, "value_norm": appended.value.norm}
        normed += [appended.key, appended.value]
    attributes = {
        "num_heads": query.heads,
        "scale": match.scale,
        "window": match.window,
        "chunked": int(match.chunked),
        "floor_scale": 0 if match.temperature is None else match.temperature.floor_scale,
        "floor_offset": 0 if match.temperature is None else match.temperature.floor_offset,
        "attn_scale": 0.0 if match.temperature is None else match.temperature.attn_scale,
        "first_position": match.first_position,
        "cache_group": 0,
        "softcap": match.softcap,
        "norm_epsilon": max(heads.norm_epsilon for heads in normed),
        "norm_after_rope": int(any(heads.norm_is_last for heads in normed)),
        "appends": int(appended is not None),
        "key_scale": caches.scales[0],
        "value_scale": caches.scales[1],
    }
    outputs = {"y": output, **caches.after}
    graph.insert_before(attention, fused_node("PagedAttention", str(attention.name), inputs, outputs, attributes))
    replace_value(match.output, output)
    if appended is None:
        return
    pairs = zip(caches.before.values(), caches.after.values(), strict=True)
    for cache, (past, present) in zip((appended.key_cache, appended.value_cache), pairs, strict=True):
        graph.inputs[graph.inputs.index(cache.past)] = past
        graph.outputs[graph.outputs.index(cache.present)] = present
        cache.present.replace_all_uses_with(present)  # later attentions read the updated cache


@dataclass(frozen=True)
class _Caches:
    """The paged caches ``before`` the operator and ``after`` it, if it appends to them, and the scales of elements."""

    before: dict[str, ir.Value]
    after: dict[str, ir.Value]
    scales: tuple[float, float]


def _own_caches(appended: _Appended | None) -> _Caches:
    assert appended is not None
    heads, head_dim = appended.key.heads, appended.key.head_dim
    shapes: dict[str, list[Dim]] = {
        "key_cache": [NUM_BLOCKS, heads, head_dim, TOKENS_PER_BLOCK],
        "value_cache": [NUM_BLOCKS, heads, TOKENS_PER_BLOCK, head_dim],
    }
    dtypes = [ir.DataType.FLOAT if rounding is None else ONNX[rounding.to] for rounding in appended.roundings]
    key_scale, value_scale = (1.0 if rounding is None else rounding.scale for rounding in appended.roundings)
    layer = appended.key_cache.layer
    typed = list(zip(shapes, dtypes, shapes.values(), strict=True))
    before = {kind: value_of(f"{kind}.{layer}", dtype, shape) for kind, dtype, shape in typed}
    after = {f"{kind}_out": value_of(f"{kind}_out.{layer}", dtype, shape) for kind, dtype, shape in typed}
    return _Caches(before, after, (key_scale, value_scale))


def _caches_of(owner: ir.Node) -> _Caches:
    """The caches that ``owner`` has updated."""
    made = results(owner)
    before = {kind: made[f"{kind}_out"] for kind in ("key_cache", "value_cache")}
    return _Caches(before, {}, (attribute(owner, "key_scale", 1.0), attribute(owner, "value_scale", 1.0)))


def _requires(graph: ir.Graph) -> Iterable[str]:
    names = {value.name for value in graph.inputs}
    if not {PADDED_ROWS, PACKED_ROWS} <= names:
        yield "padding is not removed yet"


def _ensures(graph: ir.Graph) -> Iterable[str]:
    left = nodes_of(graph, "Attention")
    if not left and any(value.name in (PADDED_ROWS, PACKED_ROWS) for value in graph.inputs):
        yield "every attention is fused, yet something reads padded values"


PAGED_ATTENTION = GraphPass("paged_attention", _rewrite, _requires, _ensures)
