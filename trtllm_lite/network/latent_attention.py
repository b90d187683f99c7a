"""Builds causal self-attention whose keys and values are made of latents (MLA, arXiv 2405.04434, section 2.1)."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trtllm_lite.common.vocabulary import LATENT_ATTENTION
from trtllm_lite.network.context import DecoderContext
from trtllm_lite.network.graph import GraphBuilder
from trtllm_lite.network.linear import Linear, LowRankLinear
from trtllm_lite.network.norms import Norm
from trtllm_lite.network.rope import Rope
from trtllm_lite.network.weight_expression import WeightExpression


@dataclass(frozen=True)
class LatentHeads:
    """Sizes of attention: each of ``num_heads`` heads has ``plain_dim`` plain and ``rotary_dim`` rotated elements.

    ``latent_dim`` is the size of a token's latent, ``value_dim`` the size of a head's value.
    """

    num_heads: int
    plain_dim: int
    rotary_dim: int
    value_dim: int
    latent_dim: int


@dataclass(frozen=True)
class LatentAttention:
    """Attention whose keys and values are key_up[h] @ latent and value_up[h] @ latent, plus a rotated part of all keys.

    ``query`` makes the plain parts of all heads, then the rotated parts; ``latent`` makes a token's latent, which
    ``latent_norm`` normalises, then the rotated part of its key, which all heads share. ``key_up`` is [heads,
    plain_dim, latent_dim], ``value_up`` is [heads, value_dim, latent_dim]. The caches hold latents and rotated parts
    of keys, not the keys and values of heads: queries, instead of latents, are multiplied with key_up (absorbed), and
    value_up multiplies the weighted mean of latents.
    """

    query: Linear | LowRankLinear
    latent: Linear
    latent_norm: Norm
    key_up: WeightExpression
    value_up: WeightExpression
    output: Linear
    heads: LatentHeads
    scale: float
    rope: Rope

    def __call__(self, context: DecoderContext, x: ir.Value) -> ir.Value:
        """Map normalised activations [batch, seq, hidden] to the same shape; appends to the context's next cache."""
        graph, heads = context.graph, self.heads
        context.open_cache(1, (heads.rotary_dim, heads.latent_dim), LATENT_ATTENTION)
        tables = context.rotary_table(self.rope)
        sizes = [heads.num_heads * heads.plain_dim, heads.num_heads * heads.rotary_dim]
        plain, rotated = graph.split(self.query(graph, x, "q_proj"), sizes, "q_parts")
        latent, shared = graph.split(
            self.latent(graph, x, "kv_a_proj"), [heads.latent_dim, heads.rotary_dim], "kv_parts"
        )
        latent = self.latent_norm(graph, latent, "kv_a_norm")
        key = graph.op("RotaryEmbedding", [self._split(graph, shared, 1, "k_heads"), *tables], "k_rope")
        rotated = self._split(graph, rotated, heads.num_heads, "q_heads")
        rotated = graph.op("RotaryEmbedding", [rotated, *tables], "q_rope")
        new = (key, self._split(graph, latent, 1, "kv_latent"))
        keys, latents = context.extend_cache(new, LATENT_ATTENTION)
        plain = self._split(graph, plain, heads.num_heads, "q_plain")
        absorbed = graph.op("MatMul", [plain, graph.matrix(self.key_up, "k_up")], "q_absorbed")
        query = graph.op("Concat", [absorbed, rotated], "q", {"axis": -1})
        all_keys = graph.op("Concat", [latents, keys], "k", {"axis": -1})
        inputs = [query, all_keys, latents, None, None, None, context.total_lens()]
        mean = graph.op("Attention", inputs, "attention", {"is_causal": 1, "scale": self.scale})
        value_up = graph.op("Transpose", [graph.matrix(self.value_up, "v_up")], "v_up.transpose", {"perm": [0, 2, 1]})
        values = graph.op("MatMul", [mean, value_up], "values")
        tokens_first = graph.op("Transpose", [values], "merge.transpose", {"perm": [0, 2, 1, 3]})
        merged = graph.op("Reshape", [tokens_first, graph.constant("shape.merge_heads", np.array([0, 0, -1]))], "merge")
        return self.output(graph, merged, "o_proj")

    def _split(self, graph: GraphBuilder, rows: ir.Value, heads: int, name: str) -> ir.Value:
        """Return [batch, seq, heads * dim] as [batch, heads, seq, dim]."""
        split = graph.constant(f"shape.{heads}_heads_of_any_size", np.array([0, 0, heads, -1]))
        by_head = graph.op("Reshape", [rows, split], name)
        return graph.op("Transpose", [by_head], f"{name}.transpose", {"perm": [0, 2, 1, 3]})
