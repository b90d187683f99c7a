"""StableLM 3B and StableLM 2 (arXiv 2402.17834): Llama with LayerNorm and RoPE of a part of each head."""

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_activation, read_sizes
from trtllm_lite.convert.fields.rope import read_rope
from trtllm_lite.convert.fields.rope_types import RopeDefaults
from trtllm_lite.convert.parts.usual import UsualParts, layer_norm
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES, Tensors
from trtllm_lite.network.attention import Attention
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer, ParallelLayer


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; with ``use_parallel_residual`` attention and MLP share a norm."""
    sizes, activation = read_sizes(config), read_activation(config)
    rope = read_rope(config, sizes.head_dim, sizes.max_position_embeddings, RopeDefaults(part=0.25))
    bias, is_parallel = config.flag("use_qkv_bias"), config.flag("use_parallel_residual")
    config.expect("qk_layernorm", False)
    parts = UsualParts(sizes, Tensors(TENSOR_NAMES), layer_norm(config.number("layer_norm_eps", 1e-5)))

    def layer(tensors: Tensors, _: int) -> Layer:
        attention = Attention(*parts.projections(tensors, bias), sizes.heads, rope=rope)
        mlp = parts.gated_mlp(tensors, activation)
        if is_parallel:
            return ParallelLayer(parts.norm(tensors, "attention_norm", sizes.hidden_size), attention, mlp)
        return parts.pre_norm_layer(tensors, attention, mlp)

    return parts.decoder(config, parts.layers(layer))


FAMILY = Family(
    name="stablelm",
    architectures=("StableLmForCausalLM",),
    read_model=read_model,
    gguf=Gguf(
        "stablelm",
        keys={"attention.layer_norm_epsilon": "layer_norm_eps", "use_parallel_residual": "use_parallel_residual"},
        # The converter writes use_parallel_residual as true where a config lacks it; llama.cpp goes by the norm.
        config=lambda config: {"use_parallel_residual": not config.pop("has_mlp_norm")},
        flags={"use_qkv_bias": "blk.0.attn_q.bias", "has_mlp_norm": "blk.0.ffn_norm.weight"},
    ),
)
