"""DeepSeek-V2 and V2-Lite (arXiv 2405.04434): MLA (latent attention), and experts beside one that all tokens share."""

from dataclasses import replace
from typing import Any

from trtllm_lite.convert.family import Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.deepseek import deepseek_experts, deepseek_layers, read_groups
from trtllm_lite.convert.parts.deepseek_gguf import deepseek_gguf
from trtllm_lite.convert.parts.latent import LATENT_TENSOR_NAMES, LatentParts
from trtllm_lite.network.decoder import Decoder

NAMES = {role: name for role, name in LATENT_TENSOR_NAMES.items() if role != "correction"}


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; with ``topk_method`` group_limited_greedy experts are chosen within the best groups."""
    parts = LatentParts.read_latent(config, rotates_pairs=True)
    for key, value in (("scoring_func", "softmax"), ("norm_topk_prob", False), ("mlp_bias", False)):
        config.expect(key, value)
    config.expect("topk_method", "greedy", "group_limited_greedy")
    experts = deepseek_experts(config, parts, "softmax", inner=1407, scale=1.0)
    groups = read_groups(config, experts, num_best=1, defaults=(1, 1))
    if config.take("topk_method") == "group_limited_greedy":
        experts = replace(experts, groups=groups)
    layers = deepseek_layers(config, parts, experts, parts.latent_attention, first_dense=0, num_shared=2)
    return parts.decoder(config, layers)


def _topk_method(config: dict[str, Any]) -> str:
    return "group_limited_greedy" if config.get("n_group", 1) > 1 else "greedy"


FAMILY = Family(
    name="deepseek_v2",
    architectures=("DeepseekV2ForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
    gguf=deepseek_gguf(1, _topk_method),
)
