"""Llama 1 to 3.x, SmolLM2, IQuest-Coder and others of one architecture (arXiv 2302.13971, 2307.09288, 2407.21783)."""

from trtllm_lite.convert.family import Family, Gguf, Multimodal
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; all projections of a block have biases, or none has."""
    parts = LlamaParts.read(config)
    attention_bias, mlp_bias = config.flag("attention_bias"), config.flag("mlp_bias")

    def layer(tensors: Tensors, _: int) -> Layer:
        attention = parts.attention(parts.projections(tensors, attention_bias, attention_bias))
        return parts.pre_norm_layer(tensors, attention, parts.gated_mlp(tensors, parts.activation, mlp_bias))

    return parts.decoder(config, parts.layers(layer))


FAMILY = Family(
    name="llama",
    architectures=("LlamaForCausalLM", "IQuestCoderForCausalLM"),
    multimodal=Multimodal(
        architectures=(
            *("Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration"),
            "LlavaForConditionalGeneration",
        ),
        # Source: configuration_llama.py of transformers, LlamaConfig
        defaults={
            **{"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32},
            **{"num_attention_heads": 32, "max_position_embeddings": 2048},
        },
        other_keys=(
            *("vision_config", "image_token_id", "image_token_index", "scale_factor", "image_seq_length"),
            *("projector_hidden_act", "vision_feature_select_strategy", "vision_feature_layer"),
            "multimodal_projector_bias",
        ),
    ),
    read_model=read_model,
    gguf=Gguf("llama", interleaved_rope=True, optional_bias=True, also=("internlm2",)),
)
