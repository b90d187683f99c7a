"""Makes mixtures of experts from the keys and tensor names that most families with experts use."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES, Tensors
from trtllm_lite.errors import shown
from trtllm_lite.network.expert_groups import ExpertGroups
from trtllm_lite.network.layers import Block
from trtllm_lite.network.moe import Experts, Moe, Router, Scoring, SharedExpert
from trtllm_lite.network.several_matrices import RowsOfMatrices
from trtllm_lite.network.sparse_mixer import SparseMixer
from trtllm_lite.network.weight_expression import Concat, SourceTensor

MAX_EXPERTS = 1 << 17  # experts of all layers together; the largest models have some ten thousand

_MLP = "model.layers.{layer}.mlp"
MOE_TENSOR_NAMES: Mapping[str, str] = {
    **TENSOR_NAMES,
    "router": f"{_MLP}.gate",
    "expert_gate_proj": f"{_MLP}.experts.{{expert}}.gate_proj",
    "expert_up_proj": f"{_MLP}.experts.{{expert}}.up_proj",
    "expert_down_proj": f"{_MLP}.experts.{{expert}}.down_proj",
}
# The same with an expert that all tokens share, as in Qwen's models.
SHARED_EXPERT_NAMES: Mapping[str, str] = {
    **MOE_TENSOR_NAMES,
    **{f"shared_{name}_proj": f"{_MLP}.shared_expert.{name}_proj" for name in ("gate", "up", "down")},
    "shared_expert_gate": f"{_MLP}.shared_expert_gate",
}
# The same with experts that all tokens share, and corrections of scores, as in DeepSeek's models.
DEEPSEEK_MOE_NAMES: Mapping[str, str] = {
    **MOE_TENSOR_NAMES,
    "correction": f"{_MLP}.gate.e_score_correction_bias",
    **{f"shared_{name}_proj": f"{_MLP}.shared_experts.{name}_proj" for name in ("gate", "up", "down")},
}
# GGUF's metadata keys (without the architecture) of mixtures of experts.
MOE_GGUF_KEYS: Mapping[str, str] = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_weights_norm": "norm_topk_prob",
}


# Names of tensors that hold all experts of a layer, and the pattern of one of them.
STACKED_EXPERT_NAMES = {
    f"experts_{name}_proj": f"model.layers.{{layer}}.mlp.experts.{name}_proj" for name in ("gate_up", "down")
}
STACKED_EXPERTS = r"model\..*\.mlp\.experts\.gate_up_proj"


@dataclass(frozen=True)
class MoeParts:
    """Makes the experts of a layer, each with ``intermediate_size`` inner features, and their router.

    ``scale`` is a factor of all shares; with ``is_corrected`` the router adds corrections to scores for the choice of
    experts.
    """

    parts: LlamaParts
    num_experts: int
    top_k: int
    intermediate_size: int
    scoring: Scoring | SparseMixer
    scale: float = 1.0
    is_corrected: bool = False
    groups: ExpertGroups | None = None

    @classmethod
    def read(
        cls, config: ConfigFields, parts: LlamaParts, intermediate_size: int, scoring: Scoring | SparseMixer
    ) -> "MoeParts":
        """Read the number of experts (``num_experts`` or ``num_local_experts``) and how many of them a token has."""
        layers = parts.sizes.num_hidden_layers
        key = "num_local_experts" if config.take("num_local_experts") is not None else "num_experts"
        config.rename({"num_local_experts": "num_experts"})
        top_k = config.integer("num_experts_per_tok")
        if config.take("num_experts") is None:
            config.problem(key, "expected the number of a layer's experts, here or as num_local_experts, found neither")
            return cls(parts, 1, 1, intermediate_size, scoring)
        experts = config.integer("num_experts")
        if experts * layers > MAX_EXPERTS:
            config.problem(
                key, f"expected at most {MAX_EXPERTS} experts in all {layers} layers, found {experts} per layer"
            )
            experts = 1
        if top_k > experts:
            config.problem("num_experts_per_tok", f"expected at most {key} ({experts}), found {top_k}")
            top_k = 1
        return cls(parts, experts, top_k, intermediate_size, scoring)

    def moe(self, tensors: Tensors, shared: SharedExpert | None = None) -> Moe:
        """Make the mixture of experts of one layer; each matrix of each expert is a tensor of its own."""
        hidden, inner = self.parts.sizes.hidden_size, self.intermediate_size
        gate, up = (self.of_each(tensors, f"expert_{name}_proj", inner, hidden) for name in ("gate", "up"))
        down = self.of_each(tensors, "expert_down_proj", hidden, inner)
        experts = Experts(self.num_experts, gate, up, down, self.parts.activation)
        return Moe(self.router(tensors), experts, shared)

    def fused_moe(self, tensors: Tensors, shared: SharedExpert | None = None) -> Moe:
        """Make the mixture of experts of one layer from two tensors: gate and up of all experts, and their down."""
        return self._of_two(tensors, tensors.weight, shared)

    def stacked_moe(self, tensors: Tensors, shared: SharedExpert | None = None) -> Moe:
        """Like :meth:`fused_moe`, from tensors whose names have no suffix."""
        return self._of_two(tensors, tensors.plain, shared)

    def _of_two(self, tensors: Tensors, named: Callable[..., SourceTensor], shared: SharedExpert | None) -> Moe:
        hidden, inner, count = self.parts.sizes.hidden_size, self.intermediate_size, self.num_experts
        gate, up = map(
            RowsOfMatrices, named("experts_gate_up_proj", count, 2 * inner, hidden).split(inner, inner, axis=1)
        )
        down = RowsOfMatrices(named("experts_down_proj", count, hidden, inner))
        return Moe(self.router(tensors), Experts(count, gate, up, down, self.parts.activation), shared)

    def transposed_moe(self, tensors: Tensors, shared: SharedExpert | None = None) -> Moe:
        """Like :meth:`stacked_moe`, from matrices [in, out]."""
        hidden, inner, count = self.parts.sizes.hidden_size, self.intermediate_size, self.num_experts
        both = tensors.plain("experts_gate_up_proj", count, hidden, 2 * inner).transpose().split(inner, inner, axis=1)
        gate, up = map(RowsOfMatrices, both)
        down = RowsOfMatrices(tensors.plain("experts_down_proj", count, inner, hidden).transpose())
        return Moe(self.router(tensors), Experts(count, gate, up, down, self.parts.activation), shared)

    def router(self, tensors: Tensors) -> Router:
        """Make the router of one layer."""
        weight = tensors.weight("router", self.num_experts, self.parts.sizes.hidden_size)
        correction = tensors.plain("correction", self.num_experts) if self.is_corrected else None
        return Router(weight, self.top_k, self.scoring, correction, self.groups, self.scale)

    def of_each(self, tensors: Tensors, role: str, *shape: int) -> Concat:
        """The rows of a matrix that is stored in one tensor per expert."""
        return Concat(tuple(tensors.of_expert(number).weight(role, *shape) for number in range(self.num_experts)))

    def bias_of_each(self, tensors: Tensors, role: str, size: int) -> Concat:
        """The biases of a projection that are stored in one tensor per expert."""
        return Concat(tuple(tensors.of_expert(number).bias(role, size) for number in range(self.num_experts)))


def qwen_scoring(config: ConfigFields) -> Scoring:
    """The scoring of the router; with ``norm_topk_prob`` the shares of a token's experts are divided by their sum."""
    return "normalized_softmax" if config.flag("norm_topk_prob") else "softmax"


def qwen_sparse_layers(config: ConfigFields, layers: int) -> list[bool]:
    """For each layer whether it has experts, by ``decoder_sparse_step`` and ``mlp_only_layers``."""
    step, dense = config.integer("decoder_sparse_step", 1), config.take("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(number) is int for number in dense):
        config.problem("mlp_only_layers", f"expected a list of numbers of layers, found {shown(dense)}")
        dense = []
    return [number not in dense and (number + 1) % step == 0 for number in range(layers)]


def qwen_shared_expert(parts: LlamaParts, tensors: Tensors, wide: int) -> SharedExpert:
    """The expert of ``wide`` inner features that all tokens share, with its gate."""
    gate = tensors.weight("shared_expert_gate", 1, parts.sizes.hidden_size)
    return SharedExpert(parts.mlp_of(tensors, "shared_", wide), gate)


def expect_no_windows(config: ConfigFields, layers: int) -> None:
    """Refuse sliding windows; without ``use_sliding_window`` the keys that describe windows are ignored."""
    config.expect("use_sliding_window", False)
    config.expect("layer_types", ["full_attention"] * layers)
    for key in ("sliding_window", "max_window_layers"):
        config.take(key)


def scaled_inputs(moe: Moe) -> Moe:
    """The mixture whose experts' inputs, not their results, are multiplied by shares."""
    return replace(moe, experts=replace(moe.experts, scale_inputs=True))


def layer_block(experts: MoeParts, tensors: Tensors, sparse: bool, shared: SharedExpert | None = None) -> Block:
    """The experts of a ``sparse`` layer, or the gated MLP of any other layer."""
    return experts.moe(tensors, shared) if sparse else experts.parts.gated_mlp(tensors, experts.parts.activation)
