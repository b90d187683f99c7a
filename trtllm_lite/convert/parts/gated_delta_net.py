"""Makes Gated DeltaNet layers (arXiv 2412.06464) from the config keys of Qwen's models with such layers."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

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
        width = config.integer("linear_conv_kernel_dim", 4, minimum=2, maximum=_MAX_WIDTH)
        return cls(parts, heads, width, config.number("rms_norm_eps", 1e-6))

    def block(self, tensors: Tensors) -> GatedDeltaNet:
        """Make the block whose projections are fused: of each key head queries, keys, values and gates; b and a."""
        heads, hidden = self.heads, self.parts.sizes.hidden_size
        of_key_head = heads.num_value_heads // heads.num_key_heads
        values = of_key_head * heads.value_dim
        fused = tensors.weight("qkvz_proj", heads.num_key_heads * 2 * (heads.key_dim + values), hidden)
        *qkv, gate = fused.split_heads(heads.num_key_heads, heads.key_dim, heads.key_dim, values, values)
        fused = tensors.weight("ba_proj", 2 * heads.num_value_heads, hidden)
        b, a = fused.split_heads(heads.num_key_heads, of_key_head, of_key_head)
        weight = tensors.weight("conv", sum(heads.parts), 1, self.width)
        return GatedDeltaNet(
            qkv=Linear(Concat(tuple(qkv))),
            gate=Linear(gate),
            a=Linear(a),
            b=Linear(b),
            convolution=CausalConvolution(weight, ACTIVATIONS["silu"]),
            a_log=tensors.plain("a_log", heads.num_value_heads),
            dt_bias=tensors.plain("dt_bias", heads.num_value_heads),
            norm=RmsNorm(tensors.weight("gated_norm", heads.value_dim), self.epsilon),
            output=tensors.linear("delta_out_proj", hidden, heads.parts[2]),
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
