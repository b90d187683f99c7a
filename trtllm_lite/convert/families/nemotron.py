"""Nemotron and Minitron (arXiv 2402.16819, 2407.14679): LayerNorm that multiplies by 1 + w, and squared ReLU.

RoPE rotates a part of each head.
"""

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_sizes
from trtllm_lite.convert.fields.rope import read_rope
from trtllm_lite.convert.fields.rope_types import RopeDefaults
from trtllm_lite.convert.parts.usual import UsualParts
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES, Tensors
from trtllm_lite.network.attention import Attention
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer
from trtllm_lite.network.mlp import SquaredRelu
from trtllm_lite.network.norms import LayerNorm


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; all projections of a block have biases, or none has."""
    config.expect("hidden_act", "relu2")
    sizes, attention_bias, mlp_bias = read_sizes(config), config.flag("attention_bias"), config.flag("mlp_bias")
    rope = read_rope(config, sizes.head_dim, sizes.max_position_embeddings, RopeDefaults(part=0.5))
    epsilon = config.number("norm_eps", 1e-5)

    def norm(tensors: Tensors, role: str, size: int) -> LayerNorm:
        return LayerNorm(tensors.weight(role, size).affine(offset=1.0), tensors.bias(role, size), epsilon)

    parts = UsualParts(sizes, Tensors(TENSOR_NAMES), norm)

    def layer(tensors: Tensors, _: int) -> Layer:
        attention = Attention(*parts.projections(tensors, attention_bias, attention_bias), sizes.heads, rope=rope)
        return parts.pre_norm_layer(tensors, attention, parts.plain_mlp(tensors, SquaredRelu(), mlp_bias))

    return parts.decoder(config, parts.layers(layer))


FAMILY = Family(
    name="nemotron",
    architectures=("NemotronForCausalLM",),
    read_model=read_model,
    gguf=Gguf(
        "nemotron",
        keys={"attention.layer_norm_epsilon": "norm_eps"},
        flags={"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"},
        norms_plus_one=True,
    ),
)
