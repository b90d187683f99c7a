"""Causal self-attention with a KV cache."""

from dataclasses import astuple, dataclass

import numpy as np
import onnx_ir as ir

from trtllm_lite.network.context import DecoderContext, NetworkContext
from trtllm_lite.network.graph import GraphBuilder
from trtllm_lite.network.linear import Linear
from trtllm_lite.network.norms import Norm
from trtllm_lite.network.rope import Rope
from trtllm_lite.network.sinks import Sinks


@dataclass(frozen=True)
class Heads:
    """Heads of attention: ``num_heads`` query heads share ``num_kv_heads`` key/value heads (arXiv 2305.13245)."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class Temperature:
    """A scale of queries at position p: 1 + attn_scale * log(1 + floor((p + floor_offset) / floor_scale)).

    It serves long sequences (arXiv 2501.19399). Llama 4 counts positions from 1 (``floor_offset``), Ministral 3 from 0.
    """

    floor_scale: int
    attn_scale: float
    floor_offset: int = 1


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention: output(softmax(cap(scale * query . key)) value) over the tokens so far.

    ``scale`` is 1/sqrt(head_dim) unless given (arXiv 1706.03762, section 3.2.1). ``rope`` rotates the first 2 *
    len(inv_freq) elements of every query and key head, after ``query_norm`` and ``key_norm``, or before them with
    ``norms_after_rope``. The norms apply to each head on its own, or with ``norms_all_heads`` all query heads together,
    and all key heads together. ``window`` is in tokens: a query at position p sees keys at positions > p - window; with
    0 it sees all keys up to its own. With ``chunked``, sequences are cut into chunks of ``window`` positions, and a
    query sees the keys of its own chunk. Queries from ``first_position`` on see no key before that position (not
    combined with a window). ``softcap`` bounds scores to softcap * tanh(score / softcap); with 0 they are not bounded.
    ``value_norm`` applies to each value head. ``temperature`` scales queries by their position. ``sinks`` give each
    head one more key, whose value is zero. The heads' results are multiplied by sigmoid(``gate`` x), if that is given
    (arXiv 2505.06708).

    Without ``key`` and ``value``, queries attend to the keys and values of the layer with the number ``cache_of``.
    """

    query: Linear
    key: Linear | None
    value: Linear | None
    output: Linear
    heads: Heads
    scale: float | None = None
    rope: Rope | None = None
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    value_norm: Norm | None = None
    norms_all_heads: bool = False
    norms_after_rope: bool = False
    window: int = 0
    chunked: bool = False
    first_position: int = 0
    softcap: float = 0.0
    temperature: Temperature | None = None
    sinks: Sinks | None = None
    gate: Linear | None = None
    cache_of: int | None = None

    def __call__(self, context: DecoderContext, x: ir.Value) -> ir.Value:
        """Map normalised activations [batch, seq, hidden] to the same shape; appends to the context's next cache."""
        graph = context.graph
        query = self.query(graph, x, "q_proj")
        gate = None if self.gate is None else self.gate(graph, x, "gate_proj")
        if self.key is None or self.value is None:
            assert self.cache_of is not None
            heads = self._query_heads(context, query)
            return self._finish(context, heads, context.cache_of(self.cache_of), gate)
        key, value = self.key(graph, x, "k_proj"), self.value(graph, x, "v_proj")
        return self.mix(context, query, key, value, gate)

    def mix(
        self, context: DecoderContext, query: ir.Value, key: ir.Value, value: ir.Value, gate: ir.Value | None = None
    ) -> ir.Value:
        """Attend with projections [batch, seq, heads * head_dim], multiply by the gate, and project the result."""
        graph, heads = context.graph, self.heads
        context.open_cache(heads.num_kv_heads, (heads.head_dim, heads.head_dim))
        query = self._query_heads(context, query)
        key = self._rotated(context, key, heads.num_kv_heads, "k", self.key_norm)
        value = self._split(graph, value, heads.num_kv_heads, "v", self.value_norm)
        return self._finish(context, query, context.extend_cache((key, value)), gate)

    def _query_heads(self, context: DecoderContext, query: ir.Value) -> ir.Value:
        return self._rotated(context, query, self.heads.num_heads, "q", self.query_norm)

    def _rotated(
        self, context: DecoderContext, projected: ir.Value, heads: int, role: str, norm: Norm | None
    ) -> ir.Value:
        """The heads [batch, heads, seq, head_dim], normalised and rotated."""
        graph = context.graph
        split = self._split(graph, projected, heads, role, None if self.norms_after_rope else norm)
        if self.rope is not None:
            split = rotate_heads(context, split, self.rope, self.heads.head_dim, f"{role}_rope")
        return norm(graph, split, f"{role}_norm") if self.norms_after_rope and norm is not None else split

    def _finish(
        self, context: DecoderContext, query: ir.Value, cache: tuple[ir.Value, ir.Value], gate: ir.Value | None
    ) -> ir.Value:
        """Attend to the keys and values in ``cache``, multiply by the gate, and project the result."""
        graph = context.graph
        merged = merge_heads(graph, self._attend(context, query, *cache))
        if gate is not None:
            merged = graph.op("Mul", [merged, graph.op("Sigmoid", [gate], "gate")], "gated")
        return self.output(graph, merged, "o_proj")

    def _split(self, graph: GraphBuilder, projected: ir.Value, heads: int, role: str, norm: Norm | None) -> ir.Value:
        """The heads [batch, heads, seq, head_dim], normalised by ``norm``."""
        if norm is not None and self.norms_all_heads:
            projected, norm = norm(graph, projected, f"{role}_norm"), None
        return split_heads(graph, projected, heads, self.heads.head_dim, role, norm)

    def _attend(self, context: DecoderContext, query: ir.Value, keys: ir.Value, values: ir.Value) -> ir.Value:
        lens = context.total_lens()
        if self.temperature is not None:
            factor = context.temperature(*astuple(self.temperature))
            query = context.graph.op("Mul", [query, factor], "query.tuned")
        mask = context.window_mask(self.window, self.chunked) if self.window else None
        if self.first_position:
            mask = context.first_position_mask(self.first_position)
        attributes = {"is_causal": 1, "scale": self.heads.head_dim**-0.5 if self.scale is None else self.scale}
        if self.softcap:
            attributes["softcap"] = self.softcap
        if self.sinks is not None:
            keys = self.sinks.before(context.graph, keys, "keys")
            values = self.sinks.before(context.graph, values, "values")
            mask, lens = self.sinks.mask(context, mask), self.sinks.total_lens(context)
        inputs = [query, keys, values, mask, None, None, lens]
        return context.graph.op("Attention", inputs, "attention", attributes)


def split_heads(
    graph: GraphBuilder, projected: ir.Value, heads: int, head_dim: int, role: str, norm: Norm | None = None
) -> ir.Value:
    """Reshape [batch, seq, heads * head_dim] to [batch, heads, seq, head_dim], and normalise heads by the norm."""
    split = graph.constant(f"shape.{heads}_heads_of_{head_dim}", np.array([0, 0, heads, head_dim]))
    by_head = graph.op("Reshape", [projected, split], f"{role}_heads")
    if norm is not None:
        by_head = norm(graph, by_head, f"{role}_norm")
    return graph.op("Transpose", [by_head], f"{role}_heads.transpose", {"perm": [0, 2, 1, 3]})


def rotate_heads(context: NetworkContext, x: ir.Value, rope: Rope, head_dim: int, name: str) -> ir.Value:
    """Return ``x`` [batch, heads, seq, head_dim] with the first elements of each head rotated."""
    rotary_dim = 2 * len(rope.inv_freq)
    attributes = {"rotary_embedding_dim": rotary_dim} if rotary_dim < head_dim else {}
    return context.graph.op("RotaryEmbedding", [x, *context.rotary_table(rope)], name, attributes)


def merge_heads(graph: GraphBuilder, mixed: ir.Value) -> ir.Value:
    """Reshape [batch, heads, seq, head_dim] to [batch, seq, heads * head_dim]."""
    tokens_first = graph.op("Transpose", [mixed], "merge.transpose", {"perm": [0, 2, 1, 3]})
    return graph.op("Reshape", [tokens_first, graph.constant("shape.merge_heads", np.array([0, 0, -1]))], "merge")
