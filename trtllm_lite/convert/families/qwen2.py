"""Qwen2 and Qwen2.5 (arXiv 2407.10671, 2412.15115): Llama with biases on queries, keys and values."""

from trtllm_lite.convert.config_fields import ConfigFields
from trtllm_lite.convert.decoder_fields import qwen_windows, read_decoder
from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.network.spec import DecoderSpec, LayerSpec


def read_config(config: ConfigFields) -> DecoderSpec:
    """The bias is part of the architecture: no key says so."""
    return read_decoder(config, LayerSpec(qkv_bias=True), qwen_windows(config))


FAMILY = Family(
    name="qwen2",
    architectures=("Qwen2ForCausalLM",),
    read_config=read_config,
    gguf=Gguf("qwen2"),
)
