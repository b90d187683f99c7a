"""Names the tensors of a source by the role they play in the network."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from trtllm_lite.network.linear import Linear
from trtllm_lite.network.weight_expression import SourceTensor

# Names of tensors by role, without .weight and .bias, as in most Hugging Face decoders; {layer} stands for a number. In
# mixtures of experts {expert} stands for an expert's number (trtllm_lite.convert.parts.moe).
TENSOR_NAMES: Mapping[str, str] = {
    "embedding": "model.embed_tokens",
    "final_norm": "model.norm",
    "lm_head": "lm_head",
    "attention_norm": "model.layers.{layer}.input_layernorm",
    "q_proj": "model.layers.{layer}.self_attn.q_proj",
    "k_proj": "model.layers.{layer}.self_attn.k_proj",
    "v_proj": "model.layers.{layer}.self_attn.v_proj",
    "q_norm": "model.layers.{layer}.self_attn.q_norm",
    "k_norm": "model.layers.{layer}.self_attn.k_norm",
    "o_proj": "model.layers.{layer}.self_attn.o_proj",
    "mlp_norm": "model.layers.{layer}.post_attention_layernorm",
    "gate_proj": "model.layers.{layer}.mlp.gate_proj",
    "up_proj": "model.layers.{layer}.mlp.up_proj",
    "down_proj": "model.layers.{layer}.mlp.down_proj",
}
# The roles of matrices that score experts.
ROUTERS = ("router", "shared_expert_gate")

# Lists of tokens in a draft head. ``d2t`` tells the model's id of each token that the head knows.
KNOWN_TOKENS, TOKEN_LISTS = "d2t", ("d2t", "t2d")


@dataclass(frozen=True)
class Tensors:
    """The tensors of a source outside layers, in one layer, or in one expert; ``names`` are by role, like
    TENSOR_NAMES."""

    names: Mapping[str, str]
    layer: int | None = None
    expert: int | None = None

    def of_layer(self, layer: int) -> "Tensors":
        """The tensors of layer number ``layer``."""
        return replace(self, layer=layer)

    def of_expert(self, expert: int) -> "Tensors":
        """The tensors of expert number ``expert`` of the layer."""
        return replace(self, expert=expert)

    def tensor(self, role: str, *shape: int) -> SourceTensor:
        """The tensor of ``role``, whose name has no .weight or .bias."""
        return SourceTensor(self._prefix(role), shape)

    def weight(self, role: str, *shape: int) -> SourceTensor:
        """The weight of ``role`` as the source stores it."""
        return SourceTensor(f"{self._prefix(role)}.weight", shape)

    def bias(self, role: str, *shape: int) -> SourceTensor:
        """The bias of ``role``."""
        return SourceTensor(f"{self._prefix(role)}.bias", shape)

    def plain(self, role: str, *shape: int) -> SourceTensor:
        """The tensor whose name is that of ``role``, with no suffix."""
        return SourceTensor(self._prefix(role), shape)

    def linear(self, role: str, out_features: int, in_features: int, bias: bool = False) -> Linear:
        """A linear layer whose weight is stored as [out_features, in_features]."""
        return Linear(self.weight(role, out_features, in_features), self.bias(role, out_features) if bias else None)

    def linears(
        self, role: str, count: int, out_features: int, in_features: int, bias: bool = False
    ) -> tuple[Linear, ...]:
        """The ``count`` linear layers, of ``out_features`` each, that one tensor holds one after the other."""
        parts = (out_features,) * count
        weights = self.weight(role, count * out_features, in_features).split(*parts)
        biases = self.bias(role, count * out_features).split(*parts) if bias else [None] * count
        return tuple(Linear(weight, own) for weight, own in zip(weights, biases, strict=True))

    def _prefix(self, role: str) -> str:
        return self.names[role].format(layer=self.layer, expert=self.expert)
