"""Makes Gated DeltaNet layers (arXiv 2412.06464) from the config keys of Qwen's models with such layers."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from trtllm_lite.common.vocabulary import PLAIN_DTYPES
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.usual import UsualParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.errors import shown
from trtllm_lite.network.convolution import CausalConvolution
from trtllm_lite.network.gated_delta_net import DeltaHeads, GatedDeltaNet
from trtllm_lite.network.linear import Linear
from trtllm_lite.network.mlp import ACTIVATIONS
from trtllm_lite.network.norms import RmsNorm
from trtllm_lite.network.weight_expression import Concat

_LINEAR = "model.layers.{layer}.linear_attn"
DELTA_TENSOR_NAMES: Mapping[str, str] = {
    "qkvz_proj": f"{_LINEAR}.in_proj_qkvz",
    "ba_proj": f"{_LINEAR}.in_proj_ba",
    "conv": f"{_LINEAR}.conv1d",
    "a_log": f"{_LINEAR}.A_log",
    "dt_bias": f"{_LINEAR}.dt_bias",
    "gated_norm": f"{_LINEAR}.norm",
    "delta_out_proj": f"{_LINEAR}.out_proj",
}
# The same with a matrix for each projection, except that one matrix makes queries, keys and values.
APART_TENSOR_NAMES: Mapping[str, str] = {
    **{f"{role}_proj": f"{_LINEAR}.in_proj_{role}" for role in ("qkv", "z", "b", "a")},
    **{role: name for role, name in DELTA_TENSOR_NAMES.items() if role not in ("qkvz_proj", "ba_proj")},
}
_LAYER_TYPES = ("full_attention", "linear_attention")
_MAX_WIDTH = 64  # of the convolution; models have 4


@dataclass(frozen=True)
class DeltaParts:
    """Makes the recurrent block of a layer; ``width`` is that of its convolution, ``epsilon`` that of its norm."""

    parts: UsualParts
    heads: DeltaHeads
    width: int
    epsilon: float

    @classmethod
    def read(cls, config: ConfigFields, parts: UsualParts, defaults: DeltaHeads) -> "DeltaParts":
        """Read the keys ``linear_…``."""
        heads = DeltaHeads(
            config.integer("linear_num_key_heads", defaults.num_key_heads),
            config.integer("linear_num_value_heads", defaults.num_value_heads),
            config.integer("linear_key_head_dim", defaults.key_dim),
            config.integer("linear_value_head_dim", defaults.value_dim),
        )
        if heads.num_value_heads % heads.num_key_heads:
            expected = f"expected a multiple of linear_num_key_heads ({heads.num_key_heads})"
            config.problem("linear_num_value_heads", f"{expected}, found {heads.num_value_heads}")
            heads = replace(heads, num_value_heads=heads.num_key_heads)
        config.expect("mamba_ssm_dtype", *PLAIN_DTYPES)  # a proposal: builds have state_dtype
        width = config.integer("linear_conv_kernel_dim", 4, minimum=2, maximum=_MAX_WIDTH)
        return cls(parts, heads, width, config.number("rms_norm_eps", 1e-6))

    def block(self, tensors: Tensors, qkvz_apart: bool = False) -> GatedDeltaNet:
        """Make the block whose projections are fused: of each key head queries, keys, values and gates; b and a.

        With ``qkvz_apart`` one matrix makes all queries, then all keys, then all values, and another makes the gates.
        """
        qkv, gate = self._qkv_and_gate(tensors) if qkvz_apart else self._split_qkvz(tensors)
        heads, hidden = self.heads, self.parts.sizes.hidden_size
        of_key_head = heads.num_value_heads // heads.num_key_heads
        fused = tensors.weight("ba_proj", 2 * heads.num_value_heads, hidden)
        b, a = fused.split_heads(heads.num_key_heads, of_key_head, of_key_head)
        return self._made_of(tensors, qkv, gate, a=Linear(a), b=Linear(b))

    def block_apart(self, tensors: Tensors) -> GatedDeltaNet:
        """Make the block with a matrix for each projection (APART_TENSOR_NAMES)."""
        heads, hidden = self.heads.num_value_heads, self.parts.sizes.hidden_size
        a, b = (tensors.linear(role, heads, hidden) for role in ("a_proj", "b_proj"))
        return self._made_of(tensors, *self._qkv_and_gate(tensors), a, b)

    def _split_qkvz(self, tensors: Tensors) -> tuple[Linear, Linear]:
        heads = self.heads
        values = heads.num_value_heads // heads.num_key_heads * heads.value_dim
        rows = heads.num_key_heads * 2 * (heads.key_dim + values)
        fused = tensors.weight("qkvz_proj", rows, self.parts.sizes.hidden_size)
        *qkv, gate = fused.split_heads(heads.num_key_heads, heads.key_dim, heads.key_dim, values, values)
        return Linear(Concat(tuple(qkv))), Linear(gate)

    def _qkv_and_gate(self, tensors: Tensors) -> tuple[Linear, Linear]:
        hidden = self.parts.sizes.hidden_size
        rows = {"qkv_proj": sum(self.heads.parts), "z_proj": self.heads.parts[2]}
        qkv, gate = (tensors.linear(role, count, hidden) for role, count in rows.items())
        return qkv, gate

    def _made_of(self, tensors: Tensors, qkv: Linear, gate: Linear, a: Linear, b: Linear) -> GatedDeltaNet:
        heads = self.heads
        weight = tensors.weight("conv", sum(heads.parts), 1, self.width)
        return GatedDeltaNet(
            qkv=qkv,
            gate=gate,
            a=a,
            b=b,
            convolution=CausalConvolution(weight, ACTIVATIONS["silu"]),
            a_log=tensors.plain("a_log", heads.num_value_heads),
            dt_bias=tensors.plain("dt_bias", heads.num_value_heads),
            norm=RmsNorm(tensors.weight("gated_norm", heads.value_dim), self.epsilon),
            output=tensors.linear("delta_out_proj", self.parts.sizes.hidden_size, heads.parts[2]),
            heads=heads,
        )


def read_recurrent_layers(config: ConfigFields, layers: int) -> list[bool]:
    """For each layer whether it is recurrent, by ``layer_types``, or else by ``full_attention_interval``."""
    interval, types = config.integer("full_attention_interval", 4), config.take("layer_types")
    if types is None:
        return [(number + 1) % interval != 0 for number in range(layers)]
    if not isinstance(types, list) or len(types) != layers or not all(kind in _LAYER_TYPES for kind in types):
        config.problem("layer_types", f"expected {layers} times {' or '.join(_LAYER_TYPES)}, found {shown(types)}")
        return [False] * layers
    return [kind == "linear_attention" for kind in types]
