"""Makes Kimi Delta Attention (arXiv 2510.26692) from the config keys of Kimi Linear, and reads which layers have it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.usual import UsualParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.errors import shown
from trtllm_lite.network.convolution import CausalConvolution
from trtllm_lite.network.gated_delta_net import DeltaHeads, GatedDeltaNet
from trtllm_lite.network.linear import Linear, LowRankLinear
from trtllm_lite.network.mlp import ACTIVATIONS, SIGMOID
from trtllm_lite.network.norms import RmsNorm
from trtllm_lite.network.several_matrices import Elements
from trtllm_lite.network.weight_expression import Concat

_ATTENTION = "model.layers.{layer}.self_attn"
_QKV = ("q", "k", "v")
KIMI_DELTA_NAMES: Mapping[str, str] = {
    **{f"{part}_proj": f"{_ATTENTION}.{part}_proj" for part in _QKV},
    **{f"{part}_conv": f"{_ATTENTION}.{part}_conv1d" for part in _QKV},
    **{f"{role}_proj": f"{_ATTENTION}.{role}_proj" for role in ("f_a", "f_b", "b", "g_a", "g_b")},
    "a_log": f"{_ATTENTION}.A_log",
    "dt_bias": f"{_ATTENTION}.dt_bias",
    "gated_norm": f"{_ATTENTION}.o_norm",
}
_OBJECT, _LISTS = "linear_attn_config", ("kda_layers", "full_attn_layers")
# The object's keys as transformers writes them outside of it.
_OUTSIDE = {
    "num_heads": "linear_num_heads",
    "head_dim": "linear_head_dim",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}
_RECURRENT, _FULL = "linear_attention", "full_attention"
_MAX_WIDTH = 64  # of the convolutions; published models have 4


@dataclass(frozen=True)
class KimiDeltaParts:
    """Makes the recurrent block of a layer, with ``num_heads`` heads whose keys and values have ``head_dim`` elements.

    ``width`` is that of its convolutions, ``epsilon`` that of its norm. ``recurrent`` says of each layer whether it has
    such a block, in place of attention.
    """

    parts: UsualParts
    num_heads: int
    head_dim: int
    width: int
    epsilon: float
    recurrent: tuple[bool, ...]

    @classmethod
    def read(cls, config: ConfigFields, parts: UsualParts) -> "KimiDeltaParts":
        """Read ``linear_attn_config``, or the keys in which transformers writes the same."""
        fields = ConfigFields(_sizes_and_lists(config), f"{_OBJECT}.")
        recurrent = _read_recurrent(config, fields, parts.sizes.num_hidden_layers)
        heads, dim = fields.integer("num_heads", 32, maximum=1 << 16), fields.integer("head_dim", 128, maximum=1 << 12)
        width = fields.integer("short_conv_kernel_size", 4, minimum=2, maximum=_MAX_WIDTH)
        fields.check_unread()
        config.problems += fields.problems
        return cls(parts, heads, dim, width, config.number("rms_norm_eps", 1e-5), recurrent)

    def block(self, tensors: Tensors) -> GatedDeltaNet:
        """Make the block, whose decays and gates come from projections of low rank."""
        hidden, features = self.parts.sizes.hidden_size, self.num_heads * self.head_dim
        weights = [tensors.weight(f"{part}_proj", features, hidden) for part in _QKV]
        taps = [tensors.weight(f"{part}_conv", features, 1, self.width) for part in _QKV]

        def low_rank(name: str) -> LowRankLinear:
            down = tensors.linear(f"{name}_a_proj", self.head_dim, hidden)
            return LowRankLinear(down, None, tensors.linear(f"{name}_b_proj", features, self.head_dim))

        return GatedDeltaNet(
            qkv=Linear(Concat(tuple(weights))),
            gate=low_rank("g"),
            a=low_rank("f"),
            b=tensors.linear("b_proj", self.num_heads, hidden),
            convolution=CausalConvolution(Concat(tuple(taps)), ACTIVATIONS["silu"]),
            a_log=Elements(tensors.plain("a_log", 1, 1, self.num_heads, 1)),
            dt_bias=tensors.plain("dt_bias", features),
            norm=RmsNorm(tensors.weight("gated_norm", self.head_dim), self.epsilon),
            output=tensors.linear("o_proj", hidden, features),
            heads=DeltaHeads(self.num_heads, self.num_heads, self.head_dim, self.head_dim),
            gating=SIGMOID,
        )


def _sizes_and_lists(config: ConfigFields) -> dict[str, Any]:
    """The object ``linear_attn_config``, with what transformers writes outside of it."""
    given = config.take(_OBJECT) or {}
    if not isinstance(given, dict):
        config.problem(_OBJECT, f"expected an object, found {shown(given)}")
        given = {}
    found = dict(given)
    for key, outside in _OUTSIDE.items():
        value = config.take(outside)
        if value is not None and found.setdefault(key, value) != value:
            config.problem(outside, f"contradicts {_OBJECT}.{key}: {shown(value)} and {shown(found[key])}")
    return found


def _read_recurrent(config: ConfigFields, fields: ConfigFields, layers: int) -> tuple[bool, ...]:
    """For each layer whether it is recurrent, by two lists of numbers, of which the first is 1, or ``layer_types``."""
    types, lists = config.take("layer_types"), [fields.take(key) for key in _LISTS]
    if lists != [None, None]:
        are_lists = all(isinstance(numbers, list) and all(type(n) is int for n in numbers) for numbers in lists)
        recurrent, attending = lists if are_lists else ([], [])
        if sorted([*recurrent, *attending]) != list(range(1, layers + 1)):
            expected = f"expected numbers from 1 to {layers}, each once here or in {_LISTS[1]}"
            fields.problem(_LISTS[0], f"{expected}, found {shown(lists[0])} and {shown(lists[1])}")
            return (False,) * layers
        named = [_RECURRENT if number in recurrent else _FULL for number in range(1, layers + 1)]
        types = named if types is None else types
        if types != named:
            config.problem("layer_types", f"contradicts {_OBJECT}: {shown(types)} and {shown(named)}")
    if not isinstance(types, list) or len(types) != layers or not all(kind in (_FULL, _RECURRENT) for kind in types):
        config.problem("layer_types", f"expected {layers} times {_FULL} or {_RECURRENT}, found {shown(types)}")
        return (False,) * layers
    return tuple(kind == _RECURRENT for kind in types)
