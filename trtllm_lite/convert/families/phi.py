"""Phi-1, Phi-1.5 and Phi-2 (arXiv 2306.11644, 2309.05463): attention and MLP in parallel behind one LayerNorm.

All linear layers have biases, the LM head too; RoPE rotates a part of each head.
"""

from dataclasses import replace

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_activation, read_sizes
from trtllm_lite.convert.fields.rope import read_rope
from trtllm_lite.convert.fields.rope_types import RopeDefaults
from trtllm_lite.convert.parts.usual import UsualParts, layer_norm
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES, Tensors
from trtllm_lite.network.attention import Attention
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.ends import Head
from trtllm_lite.network.layers import Layer, ParallelLayer

NAMES = {
    **TENSOR_NAMES,
    "final_norm": "model.final_layernorm",
    "o_proj": "model.layers.{layer}.self_attn.dense",
    "up_proj": "model.layers.{layer}.mlp.fc1",
    "down_proj": "model.layers.{layer}.mlp.fc2",
}


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; no published model normalises queries and keys."""
    sizes, activation = read_sizes(config), read_activation(config, default="gelu_new")
    rope = read_rope(config, sizes.head_dim, sizes.max_position_embeddings, RopeDefaults(part=0.5))
    config.expect("qk_layernorm", False)
    parts = UsualParts(sizes, Tensors(NAMES), layer_norm(config.number("layer_norm_eps", 1e-5)))

    def layer(tensors: Tensors, _: int) -> Layer:
        attention = Attention(*parts.projections(tensors, True, True), sizes.heads, rope=rope)
        norm = parts.norm(tensors, "attention_norm", sizes.hidden_size)
        return ParallelLayer(norm, attention, parts.plain_mlp(tensors, activation, bias=True))

    decoder = parts.decoder(config, parts.layers(layer))
    head = replace(decoder.head.linear, bias=parts.tensors.bias("lm_head", sizes.vocab_size))
    return replace(decoder, head=Head(head))


FAMILY = Family(
    name="phi",
    architectures=("PhiForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
    gguf=Gguf("phi2", keys={"attention.layer_norm_epsilon": "layer_norm_eps"}),
)
