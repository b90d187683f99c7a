"""MiniMax-M2 and M2.1 (https://huggingface.co/MiniMaxAI/MiniMax-M2): norms over all queries and all keys, many experts.

A router scores by sigmoids, with corrections for the choice. Layers that predict further tokens (MTP) are not
published.
"""

from dataclasses import replace

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.rope_types import RopeDefaults
from trtllm_lite.convert.parts.deepseek_gguf import CORRECTION_ROLE
from trtllm_lite.convert.parts.moe import MOE_GGUF_KEYS, MOE_TENSOR_NAMES, MoeParts
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer

_MOE = "model.layers.{layer}.block_sparse_moe"
NAMES = {
    **MOE_TENSOR_NAMES,
    "router": f"{_MOE}.gate",
    "correction": f"{_MOE}.e_score_correction_bias",
    **{
        f"expert_{name}_proj": f"{_MOE}.experts.{{expert}}.{own}"
        for name, own in (("gate", "w1"), ("up", "w3"), ("down", "w2"))
    },
}
_FIXED = {"qk_norm_type": "per_layer", "scoring_func": "sigmoid", "shared_intermediate_size": 0, "use_qk_norm": True}
_SIGMOID = 2  # llama.cpp's number of the scoring function
_UNUSED = ("mlp_intermediate_size", "shared_moe_mode", "use_mtp", "num_mtp_modules", "mtp_transformer_layers")


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; ``rotary_dim`` elements of each head are rotated."""
    head_dim = config.integer("head_dim", 128)
    if config.take("rotary_dim") is not None:
        config.assume("partial_rotary_factor", config.integer("rotary_dim") / head_dim)
    parts = LlamaParts.read(config, NAMES, head_dim, rope=RopeDefaults(theta=5000000.0, part=1.0))
    for key, value in _FIXED.items():
        config.expect(key, value)
    for kind in ("full_attention", "linear_attention", "mlp"):
        config.expect(f"layernorm_{kind}_beta", 1.0)
    config.expect("attn_type_list", [1] * parts.sizes.num_hidden_layers)
    config.expect("expert_gating_func", _SIGMOID)  # of GGUF files
    for key in _UNUSED:
        config.take(key)
    experts = MoeParts.read(config, parts, parts.sizes.intermediate_size, "normalized_sigmoid")
    experts = replace(experts, is_corrected=config.flag("use_routing_bias", True))

    def layer(tensors: Tensors, _: int) -> Layer:
        return parts.pre_norm_layer(tensors, parts.attention_normed_over_heads(tensors), experts.moe(tensors))

    return parts.decoder(config, parts.layers(layer))


FAMILY = Family(
    name="minimax_m2",
    architectures=("MiniMaxM2ForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
    gguf=Gguf(
        "minimax-m2",
        roles=CORRECTION_ROLE,
        keys={
            **MOE_GGUF_KEYS,
            "expert_feed_forward_length": "intermediate_size",
            "expert_gating_func": "expert_gating_func",
        },
        has_experts=True,
        bare=("correction",),
    ),
)
