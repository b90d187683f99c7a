"""DeepSeek-V3 and R1 (arXiv 2412.19437): V2 whose router scores by sigmoids, with corrections for the choice.

The last layers, which predict further tokens (MTP), are left out.
"""

from dataclasses import replace

from trtllm_lite.convert.family import Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.deepseek import deepseek_experts, deepseek_gguf, deepseek_layers, read_groups
from trtllm_lite.convert.parts.latent import LATENT_TENSOR_NAMES, LatentParts
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.moe import Scoring

_DRAFTING_LAYERS = "num_nextn_predict_layers"


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; ``rope_interleave`` says whether RoPE rotates neighbouring elements."""
    parts = LatentParts.read_latent(config, rotates_pairs=config.flag("rope_interleave", True))
    config.expect("scoring_func", "sigmoid")
    config.expect("topk_method", "noaux_tc")
    config.integer(_DRAFTING_LAYERS, 0, minimum=0)
    scoring: Scoring = "normalized_sigmoid" if config.flag("norm_topk_prob", True) else "sigmoid"
    experts = replace(deepseek_experts(config, parts, scoring, inner=2048, scale=2.5), is_corrected=True)
    experts = replace(experts, groups=read_groups(config, experts, num_best=2, defaults=(8, 4)))
    return parts.decoder(config, deepseek_layers(config, parts, experts, first_dense=3, num_shared=1))


FAMILY = Family(
    name="deepseek_v3",
    architectures=("DeepseekV3ForCausalLM",),
    read_model=read_model,
    tensor_names=LATENT_TENSOR_NAMES,
    gguf=deepseek_gguf(2, lambda _: "noaux_tc"),
    drafting_layers=_DRAFTING_LAYERS,
)
