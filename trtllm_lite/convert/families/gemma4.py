"""Gemma 4, text only: layers without a window have wider heads, the last layers share keys, layers have own inputs."""

from trtllm_lite.convert.family import Family, Multimodal
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.gemma import NAMES as GEMMA_NAMES
from trtllm_lite.convert.parts.gemma4 import INPUT_NAMES, UNUSED_TENSORS, Gemma4Parts, MoeSizes
from trtllm_lite.convert.parts.gemma4_gguf import GGUF
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.ends import Head
from trtllm_lite.network.layers import Layer

NAMES = {
    **GEMMA_NAMES,
    **INPUT_NAMES,
    "layer_scale": "model.layers.{layer}.layer_scalar",
    "dense_post_norm": "model.layers.{layer}.post_feedforward_layernorm_1",
    "experts_norm": "model.layers.{layer}.pre_feedforward_layernorm_2",
    "experts_post_norm": "model.layers.{layer}.post_feedforward_layernorm_2",
    "router": "model.layers.{layer}.router.proj",
    "router_scale": "model.layers.{layer}.router.scale",
    "expert_scale": "model.layers.{layer}.router.per_expert_scale",
    "experts_gate_up_proj": "model.layers.{layer}.experts.gate_up_proj",
    "experts_down_proj": "model.layers.{layer}.experts.down_proj",
}
# Keys beside the text model's.
OTHER_KEYS = (
    *("vision_config", "audio_config", "boi_token_id", "eoi_token_id", "image_token_id", "video_token_id"),
    *("boa_token_id", "eoa_token_id", "eoa_token_index", "audio_token_id", "vision_soft_tokens_per_image"),
)


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; the MLPs of layers that share keys are twice as wide with ``use_double_wide_mlp``."""
    parts = Gemma4Parts.read(config, NAMES)
    sizes, doubles = parts.sizes, config.flag("use_double_wide_mlp")
    experts = MoeSizes.read(config, sizes.num_hidden_layers)

    def layer(tensors: Tensors, number: int) -> Layer:
        wide = sizes.intermediate_size * (2 if doubles and parts.shares(number) else 1)
        return parts.layer(tensors, number, wide, experts)

    final_norm = parts.norm(parts.tensors, "final_norm", sizes.hidden_size)
    cap = config.nullable_number("final_logit_softcapping", None) or 0.0
    head = Head(parts.head(config.flag("tie_word_embeddings", True)), softcap=cap)
    return Decoder(sizes, parts.embedding(config), parts.layers(layer), final_norm, head)


FAMILY = Family(
    name="gemma4",
    architectures=("Gemma4ForCausalLM",),
    multimodal=Multimodal(
        architectures=("Gemma4ForConditionalGeneration",),
        # Source: configuration_gemma4.py of transformers, Gemma4TextConfig
        defaults={
            **{"vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30},
            **{"num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131072},
        },
        other_keys=OTHER_KEYS,
    ),
    model_type="gemma4_text",
    read_model=read_model,
    tensor_names=NAMES,
    ignored_tensors=UNUSED_TENSORS,
    gguf=GGUF,
)
