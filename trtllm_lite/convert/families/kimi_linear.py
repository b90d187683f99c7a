"""Kimi Linear, such as Kimi-Linear-48B-A3B: Kimi Delta Attention (arXiv 2510.26692) in most layers, attention over
latents without RoPE in the others, and mixtures of experts like DeepSeek-V3's.
"""

from dataclasses import replace

from trtllm_lite.common.vocabulary import RECURRENT
from trtllm_lite.convert.family import Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.deepseek import NUM_DRAFTING_LAYERS, read_sparse_layers, sigmoid_experts
from trtllm_lite.convert.parts.kimi_delta import KIMI_DELTA_NAMES, KimiDeltaParts
from trtllm_lite.convert.parts.kimi_gguf import KIMI_GGUF
from trtllm_lite.convert.parts.latent import LATENT_TENSOR_NAMES, LatentParts
from trtllm_lite.convert.parts.moe import layer_block
from trtllm_lite.convert.parts.usual import rms_norm
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer
from trtllm_lite.network.moe import SharedExpert
from trtllm_lite.network.rope import Rope

_MOE = "model.layers.{layer}.block_sparse_moe"
NAMES = {
    **LATENT_TENSOR_NAMES,
    **KIMI_DELTA_NAMES,
    "router": f"{_MOE}.gate",
    "correction": f"{_MOE}.gate.e_score_correction_bias",
    **{f"shared_{name}_proj": f"{_MOE}.shared_experts.{name}_proj" for name in ("gate", "up", "down")},
    **{
        f"expert_{name}_proj": f"{_MOE}.experts.{{expert}}.{own}"
        for name, own in (("gate", "w1"), ("up", "w3"), ("down", "w2"))
    },
}
_OTHER_NAMES = {
    "model_max_length": "max_position_embeddings",
    "moe_renormalize": "norm_topk_prob",
    "num_expert_group": "n_group",
    "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
}


def read_model(config: ConfigFields) -> Decoder:
    """Read the config, by the names that published models or that transformers give to keys."""
    config.rename(_OTHER_NAMES)
    for key, value in (("hidden_act", "silu"), ("mla_use_nope", True), ("use_grouped_topk", True)):
        config.expect(key, value)
    config.expect("moe_router_activation_func", "sigmoid")
    parts = _without_rope(config)
    config.expect(NUM_DRAFTING_LAYERS, 0)
    experts = sigmoid_experts(config, parts, inner=1024, scale=2.446)
    shared_wide = experts.intermediate_size * config.integer("n_shared_experts", 1)
    delta, sparse = KimiDeltaParts.read(config, parts), read_sparse_layers(config, parts.sizes.num_hidden_layers, 1)

    def layer(tensors: Tensors, number: int) -> Layer:
        shared = SharedExpert(parts.mlp_of(tensors, "shared_", shared_wide))
        mlp = layer_block(experts, tensors, sparse[number], shared)
        if delta.recurrent[number]:
            return replace(parts.pre_norm_layer(tensors, delta.block(tensors), mlp), name=RECURRENT)
        return parts.pre_norm_layer(tensors, parts.latent_attention(tensors), mlp)

    return parts.decoder(config, parts.layers(layer))


def _without_rope(config: ConfigFields) -> LatentParts:
    """The parts; RoPE with frequencies of zero leaves the part of keys that all heads share as it is."""
    config.expect("rope_scaling", None)
    parts = replace(LatentParts.read_latent(config, rotates_pairs=False), tensors=Tensors(NAMES))
    rank = None if config.take("q_lora_rank") is None else parts.query_rank
    norm, rope = rms_norm(config, epsilon=1e-5), Rope((0.0,) * (parts.heads.rotary_dim // 2))
    return replace(parts, query_rank=rank, norm=norm, rope=rope)


FAMILY = Family(
    name="kimi_linear",
    architectures=("KimiLinearForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
    gguf=KIMI_GGUF,
)
