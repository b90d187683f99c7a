"""Qwen2 and Qwen2.5 (arXiv 2407.10671, 2412.15115): Llama with biases on queries, keys and values."""

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import qwen_windows
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; the biases are part of the architecture and have no key."""
    parts = LlamaParts.read(config)
    windows = qwen_windows(config, parts.sizes.num_hidden_layers)

    def layer(tensors: Tensors, number: int) -> Layer:
        attention = parts.attention(parts.projections(tensors, qkv_bias=True), window=windows[number])
        return parts.pre_norm_layer(tensors, attention, parts.gated_mlp(tensors, parts.activation))

    return parts.decoder(config, parts.layers(layer))


FAMILY = Family(
    name="qwen2",
    architectures=("Qwen2ForCausalLM",),
    read_model=read_model,
    gguf=Gguf("qwen2"),
)
