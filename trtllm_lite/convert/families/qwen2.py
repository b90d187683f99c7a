"""Qwen2 and Qwen2.5 (arXiv 2407.10671, 2412.15115): Llama with biases on queries, keys and values."""

from trtllm_lite.convert.family import Family, Gguf, Multimodal
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import qwen_windows
from trtllm_lite.convert.fields.rope_types import RopeDefaults
from trtllm_lite.convert.parts.qwen_media import MEDIA_GGUF_KEYS, MEDIA_KEYS, text_config
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; the biases are part of the architecture and have no key."""
    parts = LlamaParts.read(config, rope=RopeDefaults(by_axes=True))
    windows = qwen_windows(config, parts.sizes.num_hidden_layers)

    def layer(tensors: Tensors, number: int) -> Layer:
        attention = parts.attention(parts.projections(tensors, qkv_bias=True), window=windows[number])
        return parts.pre_norm_layer(tensors, attention, parts.gated_mlp(tensors, parts.activation))

    return parts.decoder(config, parts.layers(layer))


FAMILY = Family(
    name="qwen2",
    architectures=("Qwen2ForCausalLM",),
    multimodal=Multimodal(
        architectures=("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"),
        # Source: configuration_qwen2_vl.py of transformers, Qwen2VLTextConfig
        defaults={
            **{"vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80},
            **{"num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 32768},
        },
        other_keys=MEDIA_KEYS,
        model_types=("qwen2_vl_text", "qwen2_5_vl_text"),
        flat_types=("qwen2_vl", "qwen2_5_vl"),
    ),
    read_model=read_model,
    gguf=Gguf("qwen2", also=("qwen2vl",), keys=MEDIA_GGUF_KEYS, config=text_config),
)
