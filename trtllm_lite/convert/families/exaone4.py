"""EXAONE 4 (arXiv 2507.11407): RMS norms of query and key heads, and a norm after each block instead of before it.

Large models have sliding windows in most layers, and no position encoding in the others. Also EXAONE 4.5, text only,
without the layer that predicts a further token (MTP).
"""

from trtllm_lite.convert.family import ROTARY_BUFFERS, Family, Gguf, Multimodal
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.deepseek import NUM_DRAFTING_LAYERS
from trtllm_lite.convert.parts.exaone import EXAONE_GGUF_KEYS, gguf_layer_types, sliding_layers
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES, Tensors
from trtllm_lite.network.attention import Attention
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer

NAMES = {name: tensor for name, tensor in TENSOR_NAMES.items() if name not in ("attention_norm", "mlp_norm")} | {
    "attention_post_norm": "model.layers.{layer}.post_attention_layernorm",
    "mlp_post_norm": "model.layers.{layer}.post_feedforward_layernorm",
}


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; with a null ``sliding_window`` every layer sees all tokens and has RoPE."""
    parts = LlamaParts.read(config, NAMES, epsilon=1e-5)
    sizes, window = parts.sizes, config.nullable_integer("sliding_window", 4096) or 0
    slides = sliding_layers(config, sizes.num_hidden_layers, window)

    def layer(tensors: Tensors, number: int) -> Layer:
        attention = Attention(
            *parts.projections(tensors),
            sizes.heads,
            rope=parts.rope if slides[number] or not window else None,
            query_norm=parts.head_norm(tensors, "q_norm"),
            key_norm=parts.head_norm(tensors, "k_norm"),
            window=window if slides[number] else 0,
        )
        return parts.post_norm_layer(tensors, attention, parts.gated_mlp(tensors, parts.activation))

    return parts.decoder(config, parts.layers(layer))


FAMILY = Family(
    name="exaone4",
    architectures=("Exaone4ForCausalLM",),
    multimodal=Multimodal(
        architectures=("Exaone4_5_ForConditionalGeneration",),
        # Source: configuration_exaone4.py of transformers, Exaone4Config
        defaults={
            **{"vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 32},
            **{"num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 2048},
        },
        other_keys=("vision_config", "image_token_id", "video_token_id"),
        model_types=("exaone4_5_text",),
    ),
    read_model=read_model,
    tensor_names=NAMES,
    ignored_tensors=(*ROTARY_BUFFERS, r"mtp\..*"),
    drafting_layers=NUM_DRAFTING_LAYERS,
    gguf=Gguf(
        "exaone4",
        roles={
            "blk.{layer}.post_attention_norm": "attention_post_norm",
            "blk.{layer}.post_ffw_norm": "mlp_post_norm",
        },
        keys=EXAONE_GGUF_KEYS,
        config=gguf_layer_types,
    ),
)
