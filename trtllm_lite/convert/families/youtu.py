"""Youtu-LLM (arXiv 2512.24618): DeepSeek's attention over latents, and gated MLPs in all layers."""

from trtllm_lite.convert.family import Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.latent import LATENT_TENSOR_NAMES, LatentParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; ``rope_interleave`` says whether RoPE rotates neighbouring elements."""
    config.take("embedding_initializer_range")  # a key of training
    config.expect("mlp_bias", False)
    parts = LatentParts.read_latent(config, rotates_pairs=config.flag("rope_interleave", True))

    def layer(tensors: Tensors, _: int) -> Layer:
        mlp = parts.gated_mlp(tensors, parts.activation)
        return parts.pre_norm_layer(tensors, parts.latent_attention(tensors), mlp)

    return parts.decoder(config, parts.layers(layer), tied=True)


FAMILY = Family(
    name="youtu",
    architectures=("YoutuForCausalLM",),
    read_model=read_model,
    tensor_names=LATENT_TENSOR_NAMES,
)
