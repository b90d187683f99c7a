"""Hunyuan, dense (https://github.com/Tencent-Hunyuan): Llama with norms of query and key heads after RoPE.

RoPE's base is raised by a fixed factor, ``alpha``, as in Hunyuan-A13B.
"""

from dataclasses import replace

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES, Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer

_ATTENTION = "model.layers.{layer}.self_attn"
NAMES = {**TENSOR_NAMES, "q_norm": f"{_ATTENTION}.query_layernorm", "k_norm": f"{_ATTENTION}.key_layernorm"}
_FIXED = {
    **{"use_qk_norm": True, "use_rotary_pos_emb": True, "norm_type": "rms", "num_experts": 1},
    **{"use_cla": False, "mlp_bias": False, "position_embedding_xdrope": False, "add_classification_head": False},
}
# Keys about tokens, and about what the models do not have: shared keys and values, a head that classifies.
_UNUSED = (
    *("eod_token_id", "pad_id", "org_vocab_size", "mask_init_id", "im_start_id", "im_end_id", "im_newline_id"),
    *("text_start_id", "text_end_id", "cla_share_factor", "class_num", "dense_list", "pool_type"),
)


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; keys of published files that transformers does not read say what all models have."""
    for key, value in _FIXED.items():
        config.expect(key, value)
    for key in _UNUSED:
        config.take(key)
    parts = LlamaParts.read(config, NAMES, epsilon=1e-5)
    config.expect("attention_head_dim", parts.sizes.head_dim)
    bias = config.flag("attention_bias")

    def layer(tensors: Tensors, _: int) -> Layer:
        norms = parts.head_norm(tensors, "q_norm"), parts.head_norm(tensors, "k_norm")
        attention = parts.attention(parts.projections(tensors, bias, bias), 0, *norms)
        mlp = parts.gated_mlp(tensors, parts.activation)
        return parts.pre_norm_layer(tensors, replace(attention, norms_after_rope=True), mlp)

    return parts.decoder(config, parts.layers(layer))


# Keys of files that tell how RoPE's base, which is in the file, was raised.
_RAISED = {"rope.scaling.factor": "rope_factor", "rope.scaling.original_context_length": "rope_length"}

FAMILY = Family(
    name="hunyuan_v1_dense",
    architectures=("HunYuanDenseV1ForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
    gguf=Gguf(
        "hunyuan-dense",
        keys=_RAISED,
        config=lambda _: dict.fromkeys(_RAISED.values()),
        flags={"attention_bias": "blk.0.attn_q.bias"},
    ),
)
