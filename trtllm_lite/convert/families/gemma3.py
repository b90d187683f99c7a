"""Gemma 3, text only (arXiv 2503.19786): norms on query and key heads; windowed layers have their own RoPE."""

from typing import Any

from trtllm_lite.convert.family import Family, Gguf, Multimodal
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_layer_types
from trtllm_lite.convert.fields.rope import read_ropes_by_layer_type
from trtllm_lite.convert.parts.gemma import GGUF_KEYS, GGUF_ROLES, NAMES, GemmaParts, gguf_score_size
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.attention import Attention
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer

# Maps each kind of layer to the key of theta in configs older than transformers 5, and to its default.
THETAS = {"full_attention": ("rope_theta", 1e6), "sliding_attention": ("rope_local_base_freq", 1e4)}


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; every sixth layer has no window unless ``layer_types`` or ``sliding_window_pattern`` says so."""
    parts = GemmaParts.read(config)
    sizes = parts.sizes
    ropes = read_ropes_by_layer_type(config, sizes.head_dim, sizes.max_position_embeddings, THETAS)
    pattern = config.integer("sliding_window_pattern", 6)
    slides = read_layer_types(config, [(number + 1) % pattern != 0 for number in range(sizes.num_hidden_layers)])
    window = config.nullable_integer("sliding_window", 4096) or 0

    def layer(tensors: Tensors, number: int) -> Layer:
        attention = Attention(
            *parts.projections(tensors, parts.bias, parts.bias),
            sizes.heads,
            query_norm=parts.head_norm(tensors, "q_norm"),
            key_norm=parts.head_norm(tensors, "k_norm"),
            scale=parts.scale,
            rope=ropes["sliding_attention" if slides[number] else "full_attention"],
            window=window if slides[number] else 0,
        )
        return parts.layer(tensors, attention)

    return parts.capped_decoder(config, parts.layers(layer), softcap=None)


def gguf_config(config: dict[str, Any]) -> dict[str, Any]:
    """The RoPE of both kinds of layers: llama.cpp stores that of full attention; that of windows is never scaled."""
    theta = config.get("rope_local_base_freq", THETAS["sliding_attention"][1])
    windowed = {"rope_type": "default", "rope_theta": theta}
    ropes = {"full_attention": config["rope_parameters"], "sliding_attention": windowed}
    return {"rope_parameters": ropes, **gguf_score_size(config, largest=62)}


FAMILY = Family(
    name="gemma3",
    architectures=("Gemma3ForCausalLM",),
    multimodal=Multimodal(
        architectures=("Gemma3ForConditionalGeneration",),
        # Source: configuration_gemma3.py of transformers, Gemma3TextConfig
        defaults={
            **{"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26},
            **{"num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131072},
        },
        other_keys=("vision_config", "boi_token_index", "eoi_token_index", "image_token_index", "mm_tokens_per_image"),
    ),
    model_type="gemma3_text",
    read_model=read_model,
    tensor_names=NAMES,
    gguf=Gguf(
        "gemma3",
        roles=GGUF_ROLES,
        keys={**GGUF_KEYS, "rope.freq_base_swa": "rope_local_base_freq"},
        config=gguf_config,
        norms_plus_one=True,
    ),
)
