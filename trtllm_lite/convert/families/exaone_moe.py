"""K-EXAONE (arXiv 2601.01739): EXAONE 4's attention, with norms before blocks, and DeepSeek-V3's experts.

The layer that predicts a further token (MTP) is left out.
"""

from typing import Any

from trtllm_lite.convert.family import GGUF_DRAFTING_TENSORS, ROTARY_BUFFERS, Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.deepseek import NUM_DRAFTING_LAYERS, deepseek_layers, sigmoid_experts
from trtllm_lite.convert.parts.deepseek_gguf import CORRECTION_ROLE, DEEPSEEK_MOE_GGUF_KEYS, deepseek_moe_config
from trtllm_lite.convert.parts.exaone import EXAONE_GGUF_KEYS, gguf_layer_types, sliding_layers
from trtllm_lite.convert.parts.moe import DEEPSEEK_MOE_NAMES
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.attention import Attention
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Block

NAMES = {**DEEPSEEK_MOE_NAMES, "correction": "model.layers.{layer}.mlp.e_score_correction_bias"}
_OF_DRAFTING = ("mtp_loss_scaling_factor", "mtp_share_layers")


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; with a null ``sliding_window`` every layer sees all tokens and has RoPE."""
    config.rename({"num_shared_experts": "n_shared_experts", "first_last_k_dense_replace": "first_k_dense_replace"})
    for key in _OF_DRAFTING:
        config.take(key)
    parts = LlamaParts.read(config, NAMES, epsilon=1e-5)
    layers, window = parts.sizes.num_hidden_layers, config.nullable_integer("sliding_window", 4096) or 0
    slides = sliding_layers(config, layers, window)
    experts = sigmoid_experts(config, parts, inner=1024, scale=2.5)
    dense = config.integer("first_k_dense_replace", 1, minimum=0)
    config.expect("is_moe_layer", [number >= dense for number in range(layers)])

    def attention(tensors: Tensors, number: int) -> Block:
        return Attention(
            *parts.projections(tensors),
            parts.sizes.heads,
            rope=parts.rope if slides[number] or not window else None,
            query_norm=parts.head_norm(tensors, "q_norm"),
            key_norm=parts.head_norm(tensors, "k_norm"),
            window=window if slides[number] else 0,
        )

    return parts.decoder(config, deepseek_layers(config, parts, experts, attention, first_dense=1, num_shared=1))


def _gguf_config(config: dict[str, Any]) -> dict[str, Any]:
    """The entries that a file leaves out; the size of the shared expert is that of its tensors."""
    found = deepseek_moe_config(config)
    types = gguf_layer_types({**config, **found})
    return {**found, **types, "scoring_func": "sigmoid", "shared_size": None}


FAMILY = Family(
    name="exaone_moe",
    architectures=("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"),
    read_model=read_model,
    tensor_names=NAMES,
    ignored_tensors=(*ROTARY_BUFFERS, r"mtp\..*", *GGUF_DRAFTING_TENSORS),
    gguf=Gguf(
        "exaone-moe",
        roles=CORRECTION_ROLE,
        keys={
            **DEEPSEEK_MOE_GGUF_KEYS,
            **EXAONE_GGUF_KEYS,
            "expert_shared_feed_forward_length": "shared_size",
        },
        config=_gguf_config,
        has_experts=True,
        bare=("correction",),
    ),
    drafting_layers=NUM_DRAFTING_LAYERS,
)
