"""Mellum 2 (https://huggingface.co/JetBrains/Mellum2-12B-A2.5B-Base): Qwen3 with experts, and windows in most layers.

RoPE is scaled in the layers that see all tokens, and plain in the others. The layer that predicts a further token (MTP)
is left out.
"""

from trtllm_lite.convert.family import ROTARY_BUFFERS, Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_activation, read_layer_types, read_sizes
from trtllm_lite.convert.fields.rope import read_ropes_by_layer_type
from trtllm_lite.convert.parts.deepseek import read_sparse_layers
from trtllm_lite.convert.parts.moe import MOE_TENSOR_NAMES, MoeParts, layer_block
from trtllm_lite.convert.parts.usual import LlamaParts, rms_norm
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.attention import Attention
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer
from trtllm_lite.network.moe import Scoring

_THETAS = {"full_attention": ("rope_theta", 500000.0), "sliding_attention": ("rope_local_base_freq", 10000.0)}
# Keys of the layer that drafts, and keys of published configs that repeat ``layer_types``.
_UNUSED = (
    *("num_mtp_layers", "num_nextn_predict_layers", "mtp_layer_types", "mtp_mlp_layer_types"),
    *("use_sliding_window", "max_window_layers"),
)


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; all layers see all tokens and have experts unless it lists their types."""
    for key in _UNUSED:
        config.take(key)
    sizes = read_sizes(config, head_dim=128)
    ropes = read_ropes_by_layer_type(config, sizes.head_dim, sizes.max_position_embeddings, _THETAS)
    usual = Tensors(MOE_TENSOR_NAMES), rms_norm(config), ropes["full_attention"], read_activation(config)
    parts = LlamaParts(sizes, *usual)
    slides = read_layer_types(config, [False] * sizes.num_hidden_layers)
    window, bias = config.nullable_integer("sliding_window", 1024) or 0, config.flag("attention_bias")
    scoring: Scoring = "normalized_softmax" if config.flag("norm_topk_prob", True) else "softmax"
    experts = MoeParts.read(config, parts, config.integer("moe_intermediate_size", 896), scoring)
    sparse = read_sparse_layers(config, sizes.num_hidden_layers, 0)

    def layer(tensors: Tensors, number: int) -> Layer:
        attention = Attention(
            *parts.projections(tensors, bias, bias),
            sizes.heads,
            rope=ropes["sliding_attention" if slides[number] else "full_attention"],
            query_norm=parts.head_norm(tensors, "q_norm"),
            key_norm=parts.head_norm(tensors, "k_norm"),
            window=window if slides[number] else 0,
        )
        return parts.pre_norm_layer(tensors, attention, layer_block(experts, tensors, sparse[number]))

    return parts.decoder(config, parts.layers(layer))


FAMILY = Family(
    name="mellum",
    architectures=("MellumForCausalLM",),
    read_model=read_model,
    tensor_names=MOE_TENSOR_NAMES,
    ignored_tensors=(*ROTARY_BUFFERS, r"mtp\..*"),
)
