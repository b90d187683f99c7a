"""ERNIE 4.5, dense (https://github.com/PaddlePaddle/ERNIE): Llama whose RoPE rotates neighbouring elements."""

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.rope_types import RopeDefaults
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; ``use_bias`` gives biases to all projections."""
    parts = LlamaParts.read(config, head_dim=128, epsilon=1e-5, rope=RopeDefaults(theta=500000.0))
    config.expect("compression_ratio", 1.0)
    bias = config.flag("use_bias")

    def layer(tensors: Tensors, _: int) -> Layer:
        projections = parts.projections(tensors, bias, bias).rotating_halves(parts.sizes, parts.rope)
        mlp = parts.gated_mlp(tensors, parts.activation, bias)
        return parts.pre_norm_layer(tensors, parts.attention(projections), mlp)

    return parts.decoder(config, parts.layers(layer), tied=True)


FAMILY = Family(
    name="ernie4_5",
    architectures=("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"),
    read_model=read_model,
    gguf=Gguf("ernie4_5", flags={"use_bias": "blk.0.attn_q.bias"}),
)
