"""Qwen3 (arXiv 2505.09388): RMS norm on every query and key head before RoPE, no biases by default."""

from trtllm_lite.convert.family import Family, Gguf, Multimodal
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import qwen_windows
from trtllm_lite.convert.fields.rope_types import RopeDefaults
from trtllm_lite.convert.parts.qwen_media import MEDIA_GGUF_KEYS, MEDIA_KEYS, text_config
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer

DEFAULT_HEAD_DIM = 128  # whatever hidden_size / num_attention_heads is


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; ``attention_bias`` gives biases to all four projections of attention."""
    parts = LlamaParts.read(config, head_dim=DEFAULT_HEAD_DIM, rope=RopeDefaults(by_axes=True))
    windows = qwen_windows(config, parts.sizes.num_hidden_layers)
    bias = config.flag("attention_bias")
    config.expect("use_qk_norm", True)

    def layer(tensors: Tensors, number: int) -> Layer:
        norms = parts.head_norm(tensors, "q_norm"), parts.head_norm(tensors, "k_norm")
        attention = parts.attention(parts.projections(tensors, bias, bias), windows[number], *norms)
        return parts.pre_norm_layer(tensors, attention, parts.gated_mlp(tensors, parts.activation))

    return parts.decoder(config, parts.layers(layer))


FAMILY = Family(
    name="qwen3",
    architectures=("Qwen3ForCausalLM",),
    multimodal=Multimodal(
        architectures=("Qwen3VLForConditionalGeneration",),
        # Source: configuration_qwen3_vl.py of transformers, Qwen3VLTextConfig
        defaults={
            **{"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32},
            **{"num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 128000},
        },
        other_keys=MEDIA_KEYS,
        model_types=("qwen3_vl_text",),
    ),
    read_model=read_model,
    gguf=Gguf("qwen3", optional_bias=True, also=("qwen3vl",), keys=MEDIA_GGUF_KEYS, config=text_config),
)
