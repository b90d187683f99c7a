"""VaultGemma (arXiv 2510.15001): Gemma 2 without the norms after attention and MLP."""

from trtllm_lite.convert.family import Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.gemma import NAMES as GEMMA_NAMES
from trtllm_lite.convert.parts.gemma import GemmaParts, capped_attention
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer

NAMES = {role: name for role, name in GEMMA_NAMES.items() if not role.endswith("_post_norm")}


def read_model(config: ConfigFields) -> Decoder:
    """Read the config, whose keys are those of Gemma 2."""
    parts = GemmaParts.read(config)
    attention = capped_attention(config, parts)

    def layer(tensors: Tensors, number: int) -> Layer:
        return parts.pre_norm_layer(tensors, attention(tensors, number), parts.gated_mlp(tensors, parts.activation))

    return parts.capped_decoder(config, parts.layers(layer), softcap=30.0)


FAMILY = Family(
    name="vaultgemma",
    architectures=("VaultGemmaForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
)
