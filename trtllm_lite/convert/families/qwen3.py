"""Qwen3 (arXiv 2505.09388): RMS norm on every query and key head before RoPE, no biases by default."""

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import qwen_windows
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer

DEFAULT_HEAD_DIM = 128  # whatever hidden_size / num_attention_heads is


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; ``attention_bias`` gives biases to all four projections of attention."""
    parts = LlamaParts.read(config, head_dim=DEFAULT_HEAD_DIM)
    windows = qwen_windows(config, parts.sizes.num_hidden_layers)
    bias = config.flag("attention_bias")
    config.expect("use_qk_norm", True)

    def layer(tensors: Tensors, number: int) -> Layer:
        norms = parts.head_norm(tensors, "q_norm"), parts.head_norm(tensors, "k_norm")
        attention = parts.attention(parts.projections(tensors, bias, bias), windows[number], *norms)
        return parts.pre_norm_layer(tensors, attention, parts.gated_mlp(tensors, parts.activation))

    return parts.decoder(config, parts.layers(layer))


FAMILY = Family(
    name="qwen3",
    architectures=("Qwen3ForCausalLM",),
    read_model=read_model,
    gguf=Gguf("qwen3", optional_bias=True),
)
