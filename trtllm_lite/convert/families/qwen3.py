"""Qwen3 (arXiv 2505.09388): RMS norm on every query and key head before RoPE, no biases by default."""

from trtllm_lite.convert.config_fields import ConfigFields
from trtllm_lite.convert.decoder_fields import qwen_windows, read_decoder
from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.network.spec import DecoderSpec, LayerSpec

DEFAULT_HEAD_DIM = 128  # whatever hidden_size / num_attention_heads is


def read_config(config: ConfigFields) -> DecoderSpec:
    """``attention_bias`` stands for all four projections."""
    bias = config.flag("attention_bias")
    layer = LayerSpec(qkv_bias=bias, output_bias=bias, qk_norm=True)
    return read_decoder(config, layer, qwen_windows(config), DEFAULT_HEAD_DIM)


FAMILY = Family(
    name="qwen3",
    architectures=("Qwen3ForCausalLM",),
    read_config=read_config,
    gguf=Gguf("qwen3", optional_bias=True),
)
