"""Seed-OSS (https://github.com/ByteDance-Seed/seed-oss): Llama with biases of queries, keys and values."""

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; the attention's output has a bias of its own, ``attention_out_bias``."""
    config.take("residual_dropout")  # a key of training
    parts = LlamaParts.read(config, head_dim=128)
    qkv_bias, output_bias = config.flag("attention_bias", True), config.flag("attention_out_bias")
    mlp_bias = config.flag("mlp_bias")

    def layer(tensors: Tensors, _: int) -> Layer:
        attention = parts.attention(parts.projections(tensors, qkv_bias, output_bias))
        return parts.pre_norm_layer(tensors, attention, parts.gated_mlp(tensors, parts.activation, mlp_bias))

    return parts.decoder(config, parts.layers(layer))


FAMILY = Family(
    name="seed_oss",
    architectures=("SeedOssForCausalLM",),
    read_model=read_model,
    gguf=Gguf(
        "seed_oss",
        roles={"blk.{layer}.post_attention_norm": "mlp_norm"},
        optional_bias=True,
        flags={"attention_out_bias": "blk.0.attn_output.bias"},
    ),
)
