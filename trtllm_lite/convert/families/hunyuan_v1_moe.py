"""Hunyuan-A13B (https://github.com/Tencent-Hunyuan/Hunyuan-A13B): norms of heads after RoPE, and a shared expert.

RoPE's base is raised by a fixed factor, ``alpha`` (NTK-aware scaling).
"""

from dataclasses import replace

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.moe import MOE_GGUF_KEYS, MOE_TENSOR_NAMES, MoeParts
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer
from trtllm_lite.network.moe import SharedExpert

_LAYER = "model.layers.{layer}"
NAMES = {
    **MOE_TENSOR_NAMES,
    **{"q_norm": f"{_LAYER}.self_attn.query_layernorm", "k_norm": f"{_LAYER}.self_attn.key_layernorm"},
    "router": f"{_LAYER}.mlp.gate.wg",
    **{f"shared_{name}_proj": f"{_LAYER}.mlp.shared_mlp.{name}_proj" for name in ("gate", "up", "down")},
}
_FIXED = {"norm_topk_prob": True, "norm_type": "rms", "use_mixed_mlp_moe": True, "use_qk_norm": True}
_FIXED |= {"use_rotary_pos_emb": True, "num_shared_expert": 1, "routed_scaling_factor": 1.0}
# Keys that concern images, classes, or the sharing of caches, which these models do not do.
_UNUSED = (
    *("cla_share_factor", "dense_list", "eod_token_id", "im_end_id", "im_newline_id", "im_start_id", "mask_init_id"),
    *("max_image_size", "num_media_embeds", "org_vocab_size", "pool_type", "text_end_id", "text_start_id"),
    *("video_end_id", "video_start_id"),
)


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; keys that list a number for each layer must have the same one for all."""
    config.rename({"moe_topk": "num_experts_per_tok", "attention_head_dim": "head_dim"})
    layers = config.take("num_hidden_layers")
    for key in ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "num_shared_expert"):
        config.same_for_all(key, layers)
    for key in _UNUSED:
        config.take(key)
    parts = LlamaParts.read(config, NAMES, epsilon=1e-5)
    wide, bias = parts.sizes.intermediate_size, config.flag("attention_bias")
    for key, value in {**_FIXED, "moe_intermediate_size": wide}.items():
        config.expect(key, value)
    experts = MoeParts.read(config, parts, wide, "normalized_softmax")

    def layer(tensors: Tensors, _: int) -> Layer:
        norms = parts.head_norm(tensors, "q_norm"), parts.head_norm(tensors, "k_norm")
        attention = parts.attention(parts.projections(tensors, bias, bias), 0, *norms)
        mixture = experts.moe(tensors, SharedExpert(parts.mlp_of(tensors, "shared_", wide)))
        return parts.pre_norm_layer(tensors, replace(attention, norms_after_rope=True), mixture)

    return parts.decoder(config, parts.layers(layer))


# Keys of files that repeat the sizes of tensors, or tell how RoPE's base, which is in the file, was raised.
_REPEATED = {
    "expert_shared_feed_forward_length": "shared_size",
    "rope.scaling.factor": "rope_factor",
    "rope.scaling.original_context_length": "rope_length",
}

FAMILY = Family(
    name="hunyuan_v1_moe",
    architectures=("HunYuanMoEV1ForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
    gguf=Gguf(
        "hunyuan-moe",
        keys={
            **MOE_GGUF_KEYS,
            "expert_shared_count": "num_shared_expert",
            **_REPEATED,
        },
        config=lambda _: dict.fromkeys(_REPEATED.values()),
        has_experts=True,
    ),
)
