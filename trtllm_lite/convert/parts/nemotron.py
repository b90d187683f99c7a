"""Makes the parts of Nemotron-H's hybrids that have no mixer of tokens, and tells which layers have which parts."""

from dataclasses import dataclass, replace

from trtllm_lite.common.vocabulary import ATTENTION, RECURRENT
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import MAX_LAYERS
from trtllm_lite.convert.parts.deepseek import read_groups
from trtllm_lite.convert.parts.mamba2 import MIXERS, read_layer_kinds
from trtllm_lite.convert.parts.moe import MoeParts
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.errors import shown
from trtllm_lite.network.mlp import RELU, PlainMlp, SquaredRelu
from trtllm_lite.network.moe import Experts, Latent, Moe, Scoring, SharedExpert

MLP, MOE = "mlp", "moe"
_KINDS = {**MIXERS, MLP: MLP, MOE: MOE}
_OF_PATTERN = {"M": RECURRENT, "*": ATTENTION, "-": MLP, "E": MOE}
_OF_EXPERTS = (
    *("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "moe_shared_expert_intermediate_size"),
    *("n_shared_experts", "moe_latent_size", "norm_topk_prob", "routed_scaling_factor", "n_group", "topk_group"),
)


def read_kinds(config: ConfigFields) -> list[str]:
    """The kind of each layer, by ``layers_block_type`` or the older ``hybrid_override_pattern``; sets their number."""
    config.rename({"layer_types": "layers_block_type"})
    names, pattern = config.take("layers_block_type"), config.take("hybrid_override_pattern")
    key, given = ("layers_block_type", names) if pattern is None else ("hybrid_override_pattern", pattern)
    if not isinstance(given, list if pattern is None else str) or not given:
        config.problem(key, f"expected the kinds of all layers, found {shown(given)}")
        return [RECURRENT] * config.integer("num_hidden_layers", maximum=MAX_LAYERS)
    config.assume("num_hidden_layers", len(given))
    kinds = [] if names is None else read_layer_kinds(config, "layers_block_type", len(given), _KINDS, RECURRENT)
    if pattern is None:
        return kinds
    if set(pattern) - set(_OF_PATTERN):
        config.problem(key, f"expected one of {' '.join(_OF_PATTERN)} for each layer, found {shown(pattern)}")
    of_pattern = [_OF_PATTERN.get(letter, RECURRENT) for letter in pattern]
    if kinds not in ([], of_pattern):
        config.problem(key, f"contradicts layers_block_type: {shown(pattern)} and {shown(names)}")
    return of_pattern


@dataclass(frozen=True)
class NemotronMlps:
    """Makes MLPs whose activation is the square of ReLU, which have biases by ``bias``, and mixtures of such experts.

    Experts work on ``latent`` features if that is not None; the expert that all tokens share has ``shared`` inner
    features.
    """

    parts: LlamaParts
    bias: bool
    experts: MoeParts | None
    latent: int | None
    shared: int

    @classmethod
    def read(cls, config: ConfigFields, parts: LlamaParts, has_experts: bool) -> "NemotronMlps":
        """Read the keys of MLPs; those of experts change nothing unless a layer ``has_experts``."""
        config.expect("mlp_hidden_act", "relu2")
        bias = config.flag("mlp_bias")
        if not has_experts:
            for key in _OF_EXPERTS:
                config.take(key)
            return cls(parts, bias, None, None, 0)
        config.expect("n_shared_experts", 1)
        scoring: Scoring = "normalized_sigmoid" if config.flag("norm_topk_prob", True) else "sigmoid"
        inner = config.integer("moe_intermediate_size", 7688)
        config.rename({"n_routed_experts": "num_experts"})
        experts = MoeParts.read(config, parts, inner, scoring)
        experts = replace(experts, is_corrected=True, scale=config.number("routed_scaling_factor", 1.0))
        experts = replace(experts, groups=read_groups(config, experts, num_best=2, defaults=(1, 1)))
        latent = None if config.take("moe_latent_size") is None else config.integer("moe_latent_size")
        return cls(parts, bias, experts, latent, config.integer("moe_shared_expert_intermediate_size", 7688))

    def mlp(self, tensors: Tensors, role: str = "", wide: int | None = None) -> PlainMlp:
        """The MLP of ``wide`` inner features, or as many as the config says; ``role`` begins the roles of tensors."""
        hidden = self.parts.sizes.hidden_size
        wide = self.parts.sizes.intermediate_size if wide is None else wide
        up = tensors.linear(f"{role}up_proj", wide, hidden, self.bias)
        return PlainMlp(up, tensors.linear(f"{role}down_proj", hidden, wide, self.bias), SquaredRelu())

    def moe(self, tensors: Tensors) -> Moe:
        """The mixture of experts of one layer. As max(u, 0)^2 = max(u, 0) * u, an expert is gated by itself."""
        experts, hidden = self.experts, self.parts.sizes.hidden_size
        assert experts is not None
        features, latent = hidden, None
        if self.latent is not None:
            into = tensors.linear("latent_in", self.latent, hidden, self.bias)
            features, latent = self.latent, Latent(into, tensors.linear("latent_out", hidden, self.latent, self.bias))
        up = experts.of_each(tensors, "expert_up_proj", experts.intermediate_size, features)
        down = experts.of_each(tensors, "expert_down_proj", features, experts.intermediate_size)
        made = Experts(experts.num_experts, None, up, down, RELU)
        return Moe(experts.router(tensors), made, SharedExpert(self.mlp(tensors, "shared_", self.shared)), latent)
