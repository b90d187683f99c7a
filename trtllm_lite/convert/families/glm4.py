"""GLM-4-0414 and GLM-Z1 (https://huggingface.co/zai-org/GLM-4-9B-0414): GLM-4 with a norm after each block, too."""

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.glm import GGUF_ROLES, GlmParts
from trtllm_lite.convert.parts.glm import NAMES as GLM_NAMES
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer

NAMES = {
    **GLM_NAMES,
    "attention_post_norm": "model.layers.{layer}.post_self_attn_layernorm",
    "mlp_post_norm": "model.layers.{layer}.post_mlp_layernorm",
}


def read_model(config: ConfigFields) -> Decoder:
    """Read the config."""
    parts = GlmParts.read(config, NAMES)

    def layer(tensors: Tensors, _: int) -> Layer:
        return parts.usual.sandwich_norm_layer(tensors, *parts.blocks(tensors))

    return parts.usual.decoder(config, parts.usual.layers(layer))


FAMILY = Family(
    name="glm4",
    architectures=("Glm4ForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
    gguf=Gguf(
        "glm4",
        roles={
            **GGUF_ROLES,
            "blk.{layer}.post_attention_norm": "attention_post_norm",
            "blk.{layer}.post_ffw_norm": "mlp_post_norm",
        },
        optional_bias=True,
    ),
)
