"""Mistral (arXiv 2310.06825): Llama with a sliding window in every layer, where the config has one."""

from trtllm_lite.convert.config_fields import ConfigFields
from trtllm_lite.convert.decoder_fields import read_decoder, uniform_windows
from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.network.spec import DecoderSpec, LayerSpec


def read_config(config: ConfigFields) -> DecoderSpec:
    """``sliding_window`` null means full attention; absent means the 4096 of Mistral 7B v0.1."""
    window = config.nullable_integer("sliding_window", 4096)
    return read_decoder(config, LayerSpec(), uniform_windows(config, window or 0))


FAMILY = Family(
    name="mistral",
    architectures=("MistralForCausalLM",),
    read_config=read_config,
    gguf=Gguf("mistral", interleaved_rope=True),
)
