"""DeepSeek-V3 and R1 (arXiv 2412.19437): V2 whose router scores by sigmoids, with corrections for the choice.

The last layers, which predict further tokens (MTP), are left out.
"""

from trtllm_lite.convert.family import GGUF_DRAFTING_TENSORS, ROTARY_BUFFERS, Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.deepseek import NUM_DRAFTING_LAYERS, deepseek_layers, sigmoid_experts
from trtllm_lite.convert.parts.deepseek_gguf import deepseek_gguf
from trtllm_lite.convert.parts.latent import LATENT_TENSOR_NAMES, LatentParts
from trtllm_lite.network.decoder import Decoder


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; ``rope_interleave`` says whether RoPE rotates neighbouring elements."""
    parts = LatentParts.read_latent(config, rotates_pairs=config.flag("rope_interleave", True))
    experts = sigmoid_experts(config, parts, inner=2048, scale=2.5, groups=(8, 4))
    layers = deepseek_layers(config, parts, experts, parts.latent_attention, first_dense=3, num_shared=1)
    return parts.decoder(config, layers)


FAMILY = Family(
    name="deepseek_v3",
    architectures=("DeepseekV3ForCausalLM",),
    read_model=read_model,
    tensor_names=LATENT_TENSOR_NAMES,
    ignored_tensors=(*ROTARY_BUFFERS, *GGUF_DRAFTING_TENSORS),
    gguf=deepseek_gguf(2, lambda _: "noaux_tc"),
    drafting_layers=NUM_DRAFTING_LAYERS,
)
