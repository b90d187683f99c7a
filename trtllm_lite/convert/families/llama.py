"""Llama 1 to 3.x, SmolLM2 and other models of the same architecture (arXiv 2302.13971, 2307.09288, 2407.21783)."""

from trtllm_lite.convert.config_fields import ConfigFields
from trtllm_lite.convert.decoder_fields import read_decoder, uniform_windows
from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.network.spec import DecoderSpec, LayerSpec


def read_config(config: ConfigFields) -> DecoderSpec:
    """Biases on all projections of a block or on none."""
    attention_bias, mlp_bias = config.flag("attention_bias"), config.flag("mlp_bias")
    layer = LayerSpec(qkv_bias=attention_bias, output_bias=attention_bias, mlp_bias=mlp_bias)
    return read_decoder(config, layer, uniform_windows(config, 0))


FAMILY = Family(
    name="llama",
    architectures=("LlamaForCausalLM",),
    read_config=read_config,
    gguf=Gguf("llama", interleaved_rope=True, optional_bias=True),
)
