"""Makes the mixtures of experts that DeepSeek's generations share with many models of others."""

from collections.abc import Callable
from dataclasses import replace

from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_layer_flags
from trtllm_lite.convert.parts.moe import MoeParts, layer_block
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.errors import shown
from trtllm_lite.network.expert_groups import ExpertGroups
from trtllm_lite.network.layers import Block, Layer
from trtllm_lite.network.moe import Scoring, SharedExpert

_MAX_GROUPS = 1024
_OF_TRAINING = ("aux_loss_alpha", "seq_aux", "ep_size")
NUM_DRAFTING_LAYERS = "num_nextn_predict_layers"


def deepseek_experts(
    config: ConfigFields, parts: LlamaParts, scoring: Scoring, *, inner: int, scale: float
) -> MoeParts:
    """The experts; ``inner`` and ``scale`` are the family's default inner features and factor of shares."""
    config.rename({"n_routed_experts": "num_experts"})
    for key in _OF_TRAINING:
        config.take(key)
    experts = MoeParts.read(config, parts, config.integer("moe_intermediate_size", inner), scoring)
    return replace(experts, scale=config.number("routed_scaling_factor", scale))


def sigmoid_experts(
    config: ConfigFields,
    parts: LlamaParts,
    *,
    inner: int,
    scale: float,
    groups: tuple[int, int] = (1, 1),
    normalized: bool = True,
) -> MoeParts:
    """The experts of DeepSeek-V3 and models like it, with corrections for the choice (arXiv 2412.19437).

    Further defaults of the family are the number of groups and of those chosen, and whether shares are ``normalized``.
    Drafting layers (MTP), which come last, are left out.
    """
    config.expect("scoring_func", "sigmoid", "noaux_tc")  # dots.llm1 names the choice here
    config.expect("topk_method", "noaux_tc")
    config.integer(NUM_DRAFTING_LAYERS, 0, minimum=0)
    scoring: Scoring = "normalized_sigmoid" if config.flag("norm_topk_prob", normalized) else "sigmoid"
    experts = replace(deepseek_experts(config, parts, scoring, inner=inner, scale=scale), is_corrected=True)
    return replace(experts, groups=read_groups(config, experts, num_best=2, defaults=groups))


def read_groups(
    config: ConfigFields, experts: MoeParts, *, num_best: int, defaults: tuple[int, int]
) -> ExpertGroups | None:
    """The groups of experts among which a token's experts are chosen; None if there is one group."""
    count = config.integer("n_group", defaults[0], maximum=_MAX_GROUPS)
    top = config.integer("topk_group", defaults[1])
    size, rest = divmod(experts.num_experts, count)
    if rest or size < num_best:
        groups = f"{experts.num_experts} experts into groups of {num_best} or more"
        config.problem("n_group", f"expected a number that divides {groups}, found {count}")
        return None
    if top > count or experts.top_k > top * size:
        needed = f"at most {count} groups that hold {experts.top_k} experts together"
        config.problem("topk_group", f"expected {needed}, found {top} groups of {size} experts")
        return None
    return ExpertGroups(count, top, num_best) if count > 1 else None


def read_sparse_layers(config: ConfigFields, layers: int, first_dense: int) -> list[bool]:
    """For each layer whether it has experts, by ``mlp_layer_types``, or else ``first_k_dense_replace``.

    The list ``moe_layer_freq`` of MiMo-V2 comes before the latter.
    """
    dense, types = config.integer("first_k_dense_replace", first_dense, minimum=0), config.take("mlp_layer_types")
    default = [number >= dense for number in range(layers)]
    if isinstance(config.take("moe_layer_freq"), list):
        default = read_layer_flags(config, "moe_layer_freq", default)
    else:
        config.expect("moe_layer_freq", 1)
    if types is None:
        return default
    if not isinstance(types, list) or len(types) != layers or not all(kind in ("dense", "sparse") for kind in types):
        config.problem("mlp_layer_types", f"expected {layers} times dense or sparse, found {shown(types)}")
        return [False] * layers
    return [kind == "sparse" for kind in types]


def deepseek_layers(
    config: ConfigFields,
    parts: LlamaParts,
    experts: MoeParts,
    attention: Callable[[Tensors, int], Block],
    *,
    first_dense: int,
    num_shared: int,
) -> tuple[Layer, ...]:
    """All layers: dense ones (``first_dense`` by default), then those with experts, ``num_shared`` of them shared."""
    sparse = read_sparse_layers(config, parts.sizes.num_hidden_layers, first_dense)
    shared_wide = experts.intermediate_size * config.integer("n_shared_experts", num_shared)

    def layer(tensors: Tensors, number: int) -> Layer:
        shared = SharedExpert(parts.mlp_of(tensors, "shared_", shared_wide))
        block = layer_block(experts, tensors, sparse[number], shared)
        return parts.pre_norm_layer(tensors, attention(tensors, number), block)

    return parts.layers(layer)
