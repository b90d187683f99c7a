"""Mistral (arXiv 2310.06825): Llama with a sliding window in every layer, if the config has one."""

from trtllm_lite.convert.family import Family, Gguf, Multimodal
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer

# Keys of Mistral3ForConditionalGeneration, beside the text model's.
OTHER_KEYS = (
    *("vision_config", "image_token_index", "vision_feature_layer", "spatial_merge_size"),
    *("projector_hidden_act", "multimodal_projector_bias"),
)


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; a null ``sliding_window`` means full attention, an absent one 4096, as in Mistral 7B v0.1."""
    parts = LlamaParts.read(config)
    window = config.nullable_integer("sliding_window", 4096) or 0

    def layer(tensors: Tensors, _: int) -> Layer:
        attention = parts.attention(parts.projections(tensors), window=window)
        return parts.pre_norm_layer(tensors, attention, parts.gated_mlp(tensors, parts.activation))

    return parts.decoder(config, parts.layers(layer))


FAMILY = Family(
    name="mistral",
    architectures=("MistralForCausalLM",),
    multimodal=Multimodal(
        architectures=("Mistral3ForConditionalGeneration",),
        # Source: configuration_mistral.py of transformers, MistralConfig
        defaults={
            **{"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32},
            **{"num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072},
        },
        other_keys=OTHER_KEYS,
    ),
    read_model=read_model,
    gguf=Gguf("mistral3", interleaved_rope=True),
)
