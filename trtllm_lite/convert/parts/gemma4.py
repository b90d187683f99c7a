"""Makes the parts of Gemma 4's text models (https://ai.google.dev/gemma/docs/core; modeling_gemma4.py of transformers).

Layers with a window and layers without have heads of different sizes and numbers; values are normalised without a
weight; the last layers attend to the keys and values of an earlier one; layers have inputs of their own.
"""

from dataclasses import dataclass, replace
from typing import Any

from trtllm_lite.convert.family import ROTARY_BUFFERS
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_activation, read_layer_types, read_sizes
from trtllm_lite.convert.fields.rope import read_ropes_by_layer_type
from trtllm_lite.convert.parts.moe import MAX_EXPERTS
from trtllm_lite.convert.parts.usual import UsualParts, rms_norm
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.errors import shown
from trtllm_lite.network.attention import Attention, Heads
from trtllm_lite.network.beside_experts import MlpBesideExperts, Normed, RoutedExperts
from trtllm_lite.network.ends import Embedding
from trtllm_lite.network.layer_inputs import EmbeddingWithLayerInputs, LayerInputMlp, LayerInputs, ScaledLayer
from trtllm_lite.network.layers import Residual
from trtllm_lite.network.linear import Linear
from trtllm_lite.network.mlp import Activation, GatedMlp
from trtllm_lite.network.moe import Experts, Router
from trtllm_lite.network.norms import Norm, RmsNorm
from trtllm_lite.network.rope import Rope
from trtllm_lite.network.several_matrices import RowsOfMatrices
from trtllm_lite.network.weight_expression import Ones, WeightExpression

SLIDING, FULL = "sliding_attention", "full_attention"
# Names of the tensors that layers' inputs need, by role.
INPUT_NAMES = {
    "input_gate": "model.layers.{layer}.per_layer_input_gate",
    "input_projection": "model.layers.{layer}.per_layer_projection",
    "input_post_norm": "model.layers.{layer}.post_per_layer_input_norm",
    "input_embedding": "model.embed_tokens_per_layer",
    "input_model_projection": "model.per_layer_model_projection",
    "input_norm": "model.per_layer_projection_norm",
}
# Layers that attend to keys and values of others may store matrices that make their own; they are read by no model.
UNUSED_TENSORS = (*ROTARY_BUFFERS, r"model\.layers\.\d+\.self_attn\.([kv]_proj|[kv]_norm)\.weight")
_THETAS = {FULL: ("rope_theta", 1e6), SLIDING: ("rope_local_base_freq", 1e4)}
_ROPES = {
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
}


@dataclass(frozen=True)
class MoeSizes:
    """The experts of each layer: their number, how many a token has, and the inner features of each."""

    num_experts: int
    top_k: int
    intermediate_size: int

    @classmethod
    def read(cls, config: ConfigFields, layers: int) -> "MoeSizes | None":
        """The sizes; None for a model without experts, whose other keys do not count then."""
        keys = "num_experts", "top_k_experts", "moe_intermediate_size"
        if not config.flag("enable_moe_block"):
            for key in keys:
                config.take(key)
            return None
        count, top_k, inner = map(config.integer, keys)
        if count * layers > MAX_EXPERTS or top_k > count:
            config.problem("num_experts", f"expected from top_k_experts to {MAX_EXPERTS // layers}, found {count}")
            count = top_k = 1
        return cls(count, top_k, inner)


@dataclass(frozen=True)
class Gemma4Parts(UsualParts):
    """The parts; ``kinds`` has the kind of each layer, ``heads`` and ``ropes`` are by kind.

    The last ``num_sharing`` layers share keys and values. In layers without a window the keys, before their norm and
    RoPE, are the values if ``keys_are_values``. ``input_size`` is the number of features of a layer's input, or 0.
    """

    kinds: tuple[str, ...]
    heads: dict[str, Heads]
    ropes: dict[str, Rope]
    window: int
    activation: Activation
    epsilon: float
    bias: bool
    num_sharing: int
    keys_are_values: bool
    input_size: int

    @classmethod
    def read(cls, config: ConfigFields, names: dict[str, str]) -> "Gemma4Parts":
        """Read the config."""
        config.expect("use_bidirectional_attention", "vision")  # images alone are seen in both directions
        sizes = read_sizes(config, head_dim=256)
        count = sizes.num_hidden_layers
        slides = read_layer_types(config, [(number + 1) % 6 != 0 for number in range(count)])
        kinds = (*(SLIDING if slide else FULL for slide in slides[:-1]), FULL)
        keys_are_values = config.flag("attention_k_eq_v")
        heads = {SLIDING: sizes.heads, FULL: _full_heads(config, sizes.heads, kinds, keys_are_values)}
        if config.take("rope_parameters") is None:
            config.assume("rope_parameters", _ROPES)
        head_dims = {kind: of_kind.head_dim for kind, of_kind in heads.items()}
        usual = sizes.head_dim, sizes.max_position_embeddings, _THETAS
        ropes = read_ropes_by_layer_type(config, *usual, head_dims=head_dims)
        return cls(
            sizes,
            Tensors(names),
            rms_norm(config),
            kinds,
            heads,
            ropes,
            config.integer("sliding_window", 512),
            read_activation(config, "hidden_activation", "gelu_pytorch_tanh"),
            config.number("rms_norm_eps", 1e-6),
            config.flag("attention_bias"),
            read_num_sharing(config, kinds, 0),
            keys_are_values,
            _input_size(config),
        )

    def shares(self, number: int) -> bool:
        """Whether the layer attends to keys and values of an earlier one."""
        return number >= len(self.kinds) - self.num_sharing

    def attention(self, tensors: Tensors, number: int) -> Attention:
        """The attention of layer ``number``; scores are not scaled."""
        kind, hidden = self.kinds[number], self.sizes.hidden_size
        heads = self.heads[kind]
        features, stored = heads.num_heads * heads.head_dim, heads.num_kv_heads * heads.head_dim
        own = Attention(
            tensors.linear("q_proj", features, hidden, self.bias),
            None,
            None,
            tensors.linear("o_proj", hidden, features, self.bias),
            heads,
            scale=1.0,
            rope=self.ropes[kind],
            query_norm=self.norm(tensors, "q_norm", heads.head_dim),
            window=self.window if kind == SLIDING else 0,
        )
        if self.shares(number):
            owners = self.kinds[: len(self.kinds) - self.num_sharing]
            return replace(own, cache_of=max(owner for owner, other in enumerate(owners) if other == kind))
        key = tensors.linear("k_proj", stored, hidden, self.bias)
        if self.keys_are_values and kind == FULL:
            (value,) = key.split(stored)  # a matrix of its own, which is merged with the others, or quantized
        else:
            value = tensors.linear("v_proj", stored, hidden, self.bias)
        return replace(
            own,
            key=key,
            value=value,
            key_norm=self.norm(tensors, "k_norm", heads.head_dim),
            value_norm=RmsNorm(Ones((heads.head_dim,)), self.epsilon),
        )

    def mlp(self, tensors: Tensors, wide: int) -> GatedMlp:
        """A gated MLP of ``wide`` inner features."""
        hidden = self.sizes.hidden_size
        gate, up = (tensors.linear(role, wide, hidden) for role in ("gate_proj", "up_proj"))
        return GatedMlp(gate, up, tensors.linear("down_proj", hidden, wide), self.activation)

    def beside_experts(self, tensors: Tensors, mlp: GatedMlp, of: MoeSizes) -> MlpBesideExperts:
        """The MLP beside experts. The router's norm is multiplied by weights and by 1/sqrt(hidden_size)."""
        hidden, inner, count = self.sizes.hidden_size, of.intermediate_size, of.num_experts

        def norm(role: str) -> Norm:
            return self.norm(tensors, role, hidden)

        both = tensors.plain("experts_gate_up_proj", count, 2 * inner, hidden).split(inner, inner, axis=1)
        gate, up = map(RowsOfMatrices, both)
        down = RowsOfMatrices(tensors.plain("experts_down_proj", count, hidden, inner))
        experts = Experts(count, gate, up, down, self.activation)
        router_norm = RmsNorm(tensors.plain("router_scale", hidden).affine(hidden**-0.5), self.epsilon)
        factors, matrix = tensors.plain("expert_scale", count), tensors.weight("router", count, hidden)
        router = Router(matrix, of.top_k, "normalized_softmax", factors=factors)
        routed = RoutedExperts(router_norm, router, norm("experts_norm"), experts, norm("experts_post_norm"))
        return MlpBesideExperts(Normed(norm("mlp_norm"), mlp, norm("dense_post_norm")), routed)

    def layer(self, tensors: Tensors, number: int, wide: int, experts: MoeSizes | None) -> ScaledLayer:
        """Layer ``number``, whose MLP has ``wide`` inner features."""
        attention, mlp = self.attention(tensors, number), self.mlp(tensors, wide)
        whole = self.sandwich_norm_layer(tensors, attention, mlp)
        if experts is not None:
            beside = self.beside_experts(tensors, mlp, experts)
            whole = replace(whole, mlp=replace(whole.mlp, norm=None, block=beside))
        scale = tensors.plain("layer_scale", 1)
        return ScaledLayer(whole, self.input_block(tensors), scale, self.sizes.hidden_size)

    def input_block(self, tensors: Tensors) -> Residual | None:
        """The block of the layer's own input, if the model has such inputs."""
        size, hidden = self.input_size, self.sizes.hidden_size
        if not size:
            return None
        gate, out = tensors.linear("input_gate", size, hidden), tensors.linear("input_projection", hidden, size)
        return Residual(None, LayerInputMlp(gate, out, self.activation), self.norm(tensors, "input_post_norm", hidden))

    def embedding(self, config: ConfigFields) -> Embedding:
        """The embedding, multiplied by sqrt(hidden_size), with the inputs of layers."""
        sizes, count = self.sizes, len(self.kinds)
        vocab, size = config.integer("vocab_size_per_layer_input", sizes.vocab_size), self.input_size
        table = self.tensors.weight("embedding", sizes.vocab_size, sizes.hidden_size)
        scale = sizes.hidden_size**0.5
        if not size:
            return Embedding(table, scale=scale, rounds_scale=True)
        if vocab != sizes.vocab_size:
            config.problem("vocab_size_per_layer_input", f"expected vocab_size ({sizes.vocab_size}), found {vocab}")
        inputs = self.layer_inputs(self.tensors.weight("input_embedding", vocab, count * size))
        return EmbeddingWithLayerInputs(table, scale, None, True, inputs)

    def layer_inputs(self, table: WeightExpression) -> LayerInputs:
        """The inputs of layers, of which ``table`` has a row for each token."""
        hidden, count, size = self.sizes.hidden_size, len(self.kinds), self.input_size
        own = Embedding(table, scale=size**0.5, rounds_scale=True)
        projection = Linear(self.tensors.weight("input_model_projection", count * size, hidden))
        # The source divides the projection by sqrt(hidden_size); its norm has the same result with another epsilon.
        norm = RmsNorm(self.tensors.weight("input_norm", size), self.epsilon * hidden)
        return LayerInputs(own, projection, norm, count, size)


def read_num_sharing(config: ConfigFields, kinds: tuple[str, ...], default: int) -> int:
    """How many of the last layers, of these ``kinds``, attend to keys and values of earlier ones."""
    count = config.integer("num_kv_shared_layers", default, minimum=0)
    if count and set(kinds) != set(kinds[: max(len(kinds) - count, 0)]):
        problem = f"expected a layer of each kind before the last {count}, found none of one kind"
        config.problem("num_kv_shared_layers", problem)
        return 0
    return count


def _input_size(config: ConfigFields) -> int:
    """The features of a layer's input; null and 0 mean that there are none."""
    key = "hidden_size_per_layer_input"
    return 0 if config.take(key) == 0 else config.nullable_integer(key, 256) or 0


def _full_heads(config: ConfigFields, heads: Heads, kinds: tuple[str, ...], keys_are_values: bool) -> Heads:
    """The heads of layers without a window, by ``per_layer_config`` or by keys of older configs."""
    head_dim, num_kv_heads = config.integer("global_head_dim", 512), heads.num_kv_heads
    given = config.integer("num_global_key_value_heads", num_kv_heads)
    own: Any = config.take("per_layer_config")
    if own == {}:  # all layers have the same heads
        return heads
    if own is None:
        return replace(heads, head_dim=head_dim, num_kv_heads=given if keys_are_values else num_kv_heads)
    expected = {str(number) for number, kind in enumerate(kinds) if kind == FULL}
    values = list(own.values()) if isinstance(own, dict) else []
    alike = all(value == values[0] and isinstance(value, dict) for value in values)
    if not values or set(own) != expected or not alike or not set(values[0]) <= {"head_dim", "num_key_value_heads"}:
        text = f"expected the same head_dim and num_key_value_heads for layers {', '.join(sorted(expected))}"
        config.problem("per_layer_config", f"{text}, found {shown(own)}")
        return heads
    fields = ConfigFields(values[0], "per_layer_config.")
    found = Heads(
        heads.num_heads,
        fields.integer("num_key_value_heads", num_kv_heads),
        fields.integer("head_dim", heads.head_dim),
    )
    config.problems += fields.problems
    return found
