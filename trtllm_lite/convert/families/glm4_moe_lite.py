"""GLM-4.7-Flash (https://huggingface.co/zai-org/GLM-4.7-Flash): DeepSeek-V3's attention and experts in fewer sizes.

The last layer, which predicts a further token (MTP), is left out.
"""

from dataclasses import replace

from trtllm_lite.convert.family import Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.deepseek import NUM_DRAFTING_LAYERS, deepseek_layers, sigmoid_experts
from trtllm_lite.convert.parts.latent import LATENT_TENSOR_NAMES, LatentParts
from trtllm_lite.convert.parts.usual import rms_norm
from trtllm_lite.network.decoder import Decoder


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; ``mlp_layer_types``, or else ``first_k_dense_replace``, tells which layers have experts."""
    parts = LatentParts.read_latent(config, rotates_pairs=config.flag("rope_interleave", True))
    parts = replace(parts, norm=rms_norm(config, 1e-5))
    experts = sigmoid_experts(config, parts, inner=1536, scale=1.8)
    layers = deepseek_layers(config, parts, experts, parts.latent_attention, first_dense=1, num_shared=1)
    return parts.decoder(config, layers)


# llama.cpp stores these models as DeepSeek-V3's; that family reads their files.
FAMILY = Family(
    name="glm4_moe_lite",
    architectures=("Glm4MoeLiteForCausalLM",),
    read_model=read_model,
    tensor_names=LATENT_TENSOR_NAMES,
    drafting_layers=NUM_DRAFTING_LAYERS,
)
