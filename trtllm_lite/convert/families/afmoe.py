"""Arcee's Trinity (AFMoE; https://huggingface.co/arcee-ai/Trinity-Mini): gated attention, norms around blocks, experts.

Layers that see all tokens have no position encoding; the router and the experts are those of DeepSeek-V3.
"""

from dataclasses import replace

from trtllm_lite.convert.family import Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_layer_types
from trtllm_lite.convert.parts.deepseek import sigmoid_experts
from trtllm_lite.convert.parts.moe import MOE_TENSOR_NAMES, layer_block
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.attention import Attention
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.ends import Embedding
from trtllm_lite.network.layers import Layer
from trtllm_lite.network.moe import SharedExpert

_LAYER = "model.layers.{layer}"
NAMES = {
    **MOE_TENSOR_NAMES,
    "attention_post_norm": f"{_LAYER}.post_attention_layernorm",
    "mlp_norm": f"{_LAYER}.pre_mlp_layernorm",
    "mlp_post_norm": f"{_LAYER}.post_mlp_layernorm",
    "attention_gate": f"{_LAYER}.self_attn.gate_proj",
    "router": f"{_LAYER}.mlp.router.gate",
    "correction": f"{_LAYER}.mlp.expert_bias",
    **{f"shared_{name}_proj": f"{_LAYER}.mlp.shared_experts.{name}_proj" for name in ("gate", "up", "down")},
}
_RENAMED = {"route_scale": "routed_scaling_factor", "score_func": "scoring_func", "route_norm": "norm_topk_prob"}
# Groups of experts, of which transformers reads none.
_OF_GROUPS = ("num_expert_groups", "num_limited_groups")


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; with ``mup_enabled`` embeddings are multiplied by sqrt(hidden_size)."""
    config.rename(_RENAMED)
    for key in _OF_GROUPS:
        config.expect(key, 1)
    for key in ("load_balance_coeff", "use_grouped_mm"):  # of training, and of kernels
        config.take(key)
    parts = LlamaParts.read(config, NAMES, head_dim=128, epsilon=1e-5)
    sizes, every = parts.sizes, config.integer("global_attn_every_n_layers", 4)
    slides = read_layer_types(config, [(number + 1) % every != 0 for number in range(sizes.num_hidden_layers)])
    window, bias = config.integer("sliding_window", 1024), config.flag("attention_bias")
    experts = sigmoid_experts(config, parts, inner=1408, scale=1.0)
    dense = config.integer("num_dense_layers", 1, minimum=0)
    shared_wide = experts.intermediate_size * config.integer("num_shared_experts", 2)
    features = sizes.num_attention_heads * sizes.head_dim

    def layer(tensors: Tensors, number: int) -> Layer:
        attention = Attention(
            *parts.projections(tensors, bias, bias),
            sizes.heads,
            rope=parts.rope if slides[number] else None,
            query_norm=parts.head_norm(tensors, "q_norm"),
            key_norm=parts.head_norm(tensors, "k_norm"),
            window=window if slides[number] else 0,
            gate=tensors.linear("attention_gate", features, sizes.hidden_size),
        )
        shared = SharedExpert(parts.mlp_of(tensors, "shared_", shared_wide))
        return parts.sandwich_norm_layer(tensors, attention, layer_block(experts, tensors, number >= dense, shared))

    decoder = parts.decoder(config, parts.layers(layer))
    scale = sizes.hidden_size**0.5 if config.flag("mup_enabled") else 1.0
    return replace(decoder, embedding=Embedding(decoder.embedding.table, scale=scale))


FAMILY = Family(
    name="afmoe",
    architectures=("AfmoeForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
)
