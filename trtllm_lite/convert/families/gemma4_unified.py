"""Gemma 4 12B, text only: Gemma 4 without inputs of layers and without experts, in classes of its own."""

from trtllm_lite.convert.families import gemma4
from trtllm_lite.convert.family import Family, Multimodal
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.network.decoder import Decoder


def read_model(config: ConfigFields) -> Decoder:
    """Read the config, whose keys are those of Gemma 4."""
    for key, value in {"hidden_size_per_layer_input": 0, "enable_moe_block": False}.items():
        config.assume(key, value)
    config.assume("sliding_window", config.integer("sliding_window", 1024))
    return gemma4.read_model(config)


FAMILY = Family(
    name="gemma4_unified",
    architectures=("Gemma4UnifiedForCausalLM",),
    multimodal=Multimodal(
        architectures=("Gemma4UnifiedForConditionalGeneration",),
        # Source: configuration_gemma4_unified.py of transformers, Gemma4UnifiedTextConfig
        defaults={
            **{"vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30},
            **{"num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 262144},
        },
        other_keys=gemma4.OTHER_KEYS,
    ),
    model_type="gemma4_unified_text",
    read_model=read_model,
    tensor_names=gemma4.NAMES,
)
