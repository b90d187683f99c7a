"""Helium (https://huggingface.co/kyutai/helium-1-preview-2b): Llama whose RoPE rotates neighbouring elements."""

from trtllm_lite.convert.family import Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.rope_types import RopeDefaults
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; the attention's output never has a bias."""
    parts = LlamaParts.read(config, head_dim=128, epsilon=1e-8, rope=RopeDefaults(theta=100000.0))
    attention_bias, mlp_bias = config.flag("attention_bias"), config.flag("mlp_bias")

    def layer(tensors: Tensors, _: int) -> Layer:
        projections = parts.projections(tensors, attention_bias).rotating_halves(parts.sizes, parts.rope)
        mlp = parts.gated_mlp(tensors, parts.activation, mlp_bias)
        return parts.pre_norm_layer(tensors, parts.attention(projections), mlp)

    return parts.decoder(config, parts.layers(layer))


FAMILY = Family(name="helium", architectures=("HeliumForCausalLM",), read_model=read_model)
