"""Makes attention over latents (MLA) and the layers around it, from the keys and tensor names that DeepSeek uses."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_activation, read_sizes
from trtllm_lite.convert.fields.rope import read_rope
from trtllm_lite.convert.parts.moe import DEEPSEEK_MOE_NAMES
from trtllm_lite.convert.parts.usual import LlamaParts, rms_norm
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.latent_attention import LatentAttention, LatentHeads
from trtllm_lite.network.linear import Linear, LowRankLinear
from trtllm_lite.network.norms import Norm, RmsNorm
from trtllm_lite.network.weight_expression import ByHead, Concat, HalvesFromPairs, WeightExpression

_LAYER = "model.layers.{layer}"
LATENT_TENSOR_NAMES: Mapping[str, str] = {
    **{role: name for role, name in DEEPSEEK_MOE_NAMES.items() if role not in ("k_proj", "v_proj", "q_norm", "k_norm")},
    "q_a_proj": f"{_LAYER}.self_attn.q_a_proj",
    "q_a_norm": f"{_LAYER}.self_attn.q_a_layernorm",
    "q_b_proj": f"{_LAYER}.self_attn.q_b_proj",
    "kv_a_proj": f"{_LAYER}.self_attn.kv_a_proj_with_mqa",
    "kv_a_norm": f"{_LAYER}.self_attn.kv_a_layernorm",
    "kv_b_proj": f"{_LAYER}.self_attn.kv_b_proj",
}
_NORM_EPSILON = 1e-6  # epsilon of the norms within attention, whatever the config says of other norms


@dataclass(frozen=True)
class LatentParts(LlamaParts):
    """Makes attention over latents; queries are first projected to ``query_rank`` numbers per token unless it is None.

    ``rotates_pairs`` says whether RoPE rotates neighbouring elements in the checkpoint.
    """

    heads: LatentHeads
    query_rank: int | None
    scale: float
    rotates_pairs: bool

    @classmethod
    def read_latent(cls, config: ConfigFields, rotates_pairs: bool) -> "LatentParts":
        """Read the keys of all models with such attention."""
        heads = LatentHeads(
            num_heads=config.integer("num_attention_heads"),
            plain_dim=config.integer("qk_nope_head_dim", 128),
            rotary_dim=config.integer("qk_rope_head_dim", 64),
            value_dim=config.integer("v_head_dim", 128),
            latent_dim=config.integer("kv_lora_rank", 512),
        )
        whole = heads.plain_dim + heads.rotary_dim
        config.expect("attention_bias", False)
        config.expect("qk_head_dim", whole)
        scale = whole**-0.5 * _temperature(config) ** 2
        # Kimi's configs say hidden_size / num_attention_heads, which no head has; nothing reads the key.
        config.expect("head_dim", heads.rotary_dim, config.integer("hidden_size") // heads.num_heads)
        config.expect("num_key_value_heads", heads.num_heads)
        sizes = read_sizes(config, heads.rotary_dim)
        rope = read_rope(config, heads.rotary_dim, sizes.max_position_embeddings)
        sizes = replace(sizes, num_key_value_heads=1, head_dim=heads.latent_dim)  # the shape that caches have
        parts = sizes, Tensors(LATENT_TENSOR_NAMES), rms_norm(config), rope, read_activation(config)
        return cls(*parts, heads, config.nullable_integer("q_lora_rank", 1536), scale, rotates_pairs)

    def latent_attention(self, tensors: Tensors, _number: int = 0) -> LatentAttention:
        """The attention of one layer, which is the same in all."""
        heads, hidden = self.heads, self.sizes.hidden_size
        rows = heads.num_heads * (heads.plain_dim + heads.value_dim)
        up = tensors.weight("kv_b_proj", rows, heads.latent_dim)
        key_up, value_up = up.split_heads(heads.num_heads, heads.plain_dim, heads.value_dim)
        latent, key = tensors.weight("kv_a_proj", heads.latent_dim + heads.rotary_dim, hidden).split(
            heads.latent_dim, heads.rotary_dim
        )
        return LatentAttention(
            query=self._query(tensors),
            latent=Linear(Concat((latent, self._halves(key, 1)))),
            latent_norm=_norm(tensors, "kv_a_norm", heads.latent_dim),
            key_up=ByHead(key_up, heads.num_heads),
            value_up=ByHead(value_up, heads.num_heads),
            output=tensors.linear("o_proj", hidden, heads.num_heads * heads.value_dim),
            heads=heads,
            scale=self.scale,
            rope=self.rope,
        )

    def _query(self, tensors: Tensors) -> Linear | LowRankLinear:
        if self.query_rank is None:
            return self._by_parts(tensors, "q_proj", self.sizes.hidden_size)
        down = tensors.linear("q_a_proj", self.query_rank, self.sizes.hidden_size)
        up = self._by_parts(tensors, "q_b_proj", self.query_rank)
        return LowRankLinear(down, _norm(tensors, "q_a_norm", self.query_rank), up)

    def _by_parts(self, tensors: Tensors, role: str, in_features: int) -> Linear:
        """Return queries with the plain parts of all heads before all rotated parts."""
        heads = self.heads
        rows = heads.num_heads * (heads.plain_dim + heads.rotary_dim)
        parts = tensors.weight(role, rows, in_features).split_heads(heads.num_heads, heads.plain_dim, heads.rotary_dim)
        return Linear(Concat((parts[0], self._halves(parts[1], heads.num_heads))))

    def _halves(self, rows: WeightExpression, heads: int) -> WeightExpression:
        return HalvesFromPairs(rows, heads) if self.rotates_pairs else rows


def _norm(tensors: Tensors, role: str, size: int) -> Norm:
    return RmsNorm(tensors.weight(role, size), _NORM_EPSILON)


def _temperature(config: ConfigFields) -> float:
    """The factor by which YaRN scales queries, and keys, from ``mscale_all_dim``; other code checks the values."""
    fields = config.take("rope_parameters") or config.take("rope_scaling")
    factor, mscale = (fields.get(key, 0) if isinstance(fields, dict) else 0 for key in ("factor", "mscale_all_dim"))
    if not all(isinstance(value, int | float) and 0 < value < 1e6 for value in (factor, mscale)):
        return 1.0
    return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0
