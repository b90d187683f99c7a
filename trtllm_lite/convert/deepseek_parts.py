"""What DeepSeek's generations of experts have in common."""

from dataclasses import replace

from trtllm_lite.convert.config_fields import ConfigFields
from trtllm_lite.convert.latent_parts import LatentParts
from trtllm_lite.convert.moe_parts import MoeParts, layer_block
from trtllm_lite.convert.source_tensors import Tensors
from trtllm_lite.network.expert_groups import ExpertGroups
from trtllm_lite.network.layers import Layer
from trtllm_lite.network.moe import Scoring, SharedExpert

_MAX_GROUPS = 1024
_OF_TRAINING = ("aux_loss_alpha", "seq_aux", "ep_size")


def deepseek_experts(
    config: ConfigFields, parts: LatentParts, scoring: Scoring, *, inner: int, scale: float
) -> MoeParts:
    """The experts; ``inner`` and ``scale`` are the generation's defaults of their inner features and shares' factor."""
    config.rename({"n_routed_experts": "num_experts"})
    config.expect("moe_layer_freq", 1)
    for key in _OF_TRAINING:
        config.take(key)
    experts = MoeParts.read(config, parts, config.integer("moe_intermediate_size", inner), scoring)
    return replace(experts, scale=config.number("routed_scaling_factor", scale))


def read_groups(
    config: ConfigFields, experts: MoeParts, *, num_best: int, defaults: tuple[int, int]
) -> ExpertGroups | None:
    """The groups of experts of which a token has some; None if there is one."""
    count = config.integer("n_group", defaults[0], maximum=_MAX_GROUPS)
    top = config.integer("topk_group", defaults[1])
    size, rest = divmod(experts.num_experts, count)
    if rest or size < num_best:
        groups = f"{experts.num_experts} experts into groups of {num_best} or more"
        config.problem("n_group", f"expected a number that divides {groups}, found {count}")
        return None
    if top > count or experts.top_k > top * size:
        needed = f"groups with {experts.top_k} experts among {count}"
        config.problem("topk_group", f"expected {needed}, found {top} of {size}")
        return None
    return ExpertGroups(count, top, num_best) if count > 1 else None


def deepseek_layers(
    config: ConfigFields, parts: LatentParts, experts: MoeParts, *, first_dense: int, num_shared: int
) -> tuple[Layer, ...]:
    """All layers: dense ones (``first_dense`` by default), then those with experts, ``num_shared`` of them shared."""
    dense = config.integer("first_k_dense_replace", first_dense, minimum=0)
    shared_wide = experts.intermediate_size * config.integer("n_shared_experts", num_shared)

    def layer(tensors: Tensors, number: int) -> Layer:
        shared = SharedExpert(parts.mlp_of(tensors, "shared_", shared_wide))
        block = layer_block(experts, tensors, number >= dense, shared)
        return parts.pre_norm_layer(tensors, parts.latent_attention(tensors), block)

    return parts.layers(layer)
