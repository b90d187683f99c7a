"""Makes Mamba-2 layers (arXiv 2405.21060) from the config keys of models with such layers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtllm_lite.common.vocabulary import ATTENTION, RECURRENT
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.errors import shown
from trtllm_lite.network.convolution import CausalConvolution
from trtllm_lite.network.mamba2 import NO_BOUNDS, GroupedNorm, Mamba2, SpaceHeads
from trtllm_lite.network.mlp import ACTIVATIONS

_MAX_WIDTH = 64  # of the convolution; models have 4
# Kinds of layers, by their names in configs, old and new, of models that have attention in some layers.
MIXERS = {
    **dict.fromkeys(("mamba", "linear_attention"), RECURRENT),
    **dict.fromkeys(("attention", "full_attention"), ATTENTION),
}
_STEPS = "time_step_limit"
_INFINITE = ({"__float__": "Infinity"}, math.inf)  # as transformers 5 writes it, and as older versions do


def mamba_tensor_names(block: str) -> Mapping[str, str]:
    """Names by role of the tensors of a layer's ``block``, in which {layer} stands for a number."""
    return {
        "in_proj": f"{block}.in_proj",
        "conv": f"{block}.conv1d",
        "a_log": f"{block}.A_log",
        "dt_bias": f"{block}.dt_bias",
        "d": f"{block}.D",
        "gated_norm": f"{block}.norm",
        "mamba_out_proj": f"{block}.out_proj",
    }


@dataclass(frozen=True)
class MambaKeys:
    """The names of a config's keys; the defaults are those of most families.

    Heads together have ``inner`` features, or without that key ``expand`` times as many as the residual stream, or any
    number if there is neither. Without ``out_bias`` the last projection has a bias where the first has one. Keys that
    ``change_nothing`` are of training or of other kernels.
    """

    num_heads: str = "mamba_n_heads"
    head_dim: str = "mamba_d_head"
    num_groups: str = "mamba_n_groups"
    state_size: str = "mamba_d_state"
    width: str = "mamba_d_conv"
    expand: str | None = "mamba_expand"
    inner: str | None = None
    conv_bias: str = "mamba_conv_bias"
    bias: str = "mamba_proj_bias"
    out_bias: str | None = None
    activation: str = "hidden_act"
    epsilon: str = "rms_norm_eps"
    change_nothing: tuple[str, ...] = ("mamba_chunk_size",)


_USUAL_KEYS = MambaKeys()


@dataclass(frozen=True)
class MambaParts:
    """Makes the recurrent block of a layer.

    ``width`` is that of its convolution, which has biases by ``conv_bias``, as the first and the last projection have
    by ``bias`` and ``out_bias``; ``epsilon`` is that of its norm, ``bounds`` those of steps.
    """

    heads: SpaceHeads
    hidden_size: int
    width: int
    conv_bias: bool
    bias: bool
    out_bias: bool
    epsilon: float
    bounds: tuple[float, float]

    @classmethod
    def read(cls, config: ConfigFields, defaults: SpaceHeads, keys: MambaKeys = _USUAL_KEYS) -> "MambaParts":
        """Read the ``keys``; ``defaults`` are the family's."""
        for key in keys.change_nothing:
            config.take(key)
        config.expect(keys.activation, "silu", "swish")
        hidden = config.integer("hidden_size")
        inner = None if keys.expand is None else config.integer(keys.expand, 2) * hidden
        if keys.inner is not None:
            inner = config.nullable_integer(keys.inner, defaults.num_heads * defaults.head_dim) or inner
        bias = config.flag(keys.bias)
        return cls(
            _read_heads(config, keys, defaults, inner),
            hidden,
            config.integer(keys.width, 4, minimum=2, maximum=_MAX_WIDTH),
            config.flag(keys.conv_bias, True),
            bias,
            bias if keys.out_bias is None else config.flag(keys.out_bias),
            config.number(keys.epsilon, 1e-5),
            _read_bounds(config),
        )

    def norm(self, tensors: Tensors, *, gate_last: bool = False) -> GroupedNorm:
        """The norm of each group's features, after the gate, or before it with ``gate_last``."""
        weight = tensors.weight("gated_norm", self.heads.parts[0])
        return GroupedNorm(weight, self.heads.num_groups, self.epsilon, gate_last)

    def block(self, tensors: Tensors, norm: GroupedNorm | None) -> Mamba2:
        """Make the block, whose first projection makes gates, then inputs, B and C, and then steps."""
        heads, inner, channels = self.heads, self.heads.parts[0], sum(self.heads.parts)
        fused = tensors.linear("in_proj", inner + channels + heads.num_heads, self.hidden_size, self.bias)
        gate, xbc, dt = fused.split(inner, channels, heads.num_heads)
        conv_bias = tensors.bias("conv", channels) if self.conv_bias else None
        return Mamba2(
            gate=gate,
            xbc=xbc,
            dt=dt,
            convolution=CausalConvolution(
                tensors.weight("conv", channels, 1, self.width), ACTIVATIONS["silu"], conv_bias
            ),
            a_log=tensors.plain("a_log", heads.num_heads),
            dt_bias=tensors.plain("dt_bias", heads.num_heads),
            d=tensors.plain("d", heads.num_heads),
            norm=norm,
            output=tensors.linear("mamba_out_proj", self.hidden_size, inner, self.out_bias),
            heads=heads,
            bounds=self.bounds,
        )


def read_layer_kinds(config: ConfigFields, key: str, layers: int, kinds: Mapping[str, str], default: str) -> list[str]:
    """The kind of each layer by the list ``key``, whose entries ``kinds`` translates; without a list, the default."""
    found = config.take(key)
    if found is None:
        return [default] * layers
    if not isinstance(found, list) or len(found) != layers or not all(isinstance(name, str) for name in found):
        config.problem(key, f"expected a list of {layers} kinds of layers, as many as there are, found {shown(found)}")
        return [default] * layers
    for number, name in enumerate(found):
        if name not in kinds:
            config.problem(key, f"expected {' or '.join(kinds)}, found {shown(name)} for layer {number}")
    return [kinds.get(name, default) for name in found]


def _read_heads(config: ConfigFields, keys: MambaKeys, defaults: SpaceHeads, inner: int | None) -> SpaceHeads:
    """The heads, which have ``inner`` features together, if that is not None."""
    num_heads = config.integer(keys.num_heads, defaults.num_heads)
    groups = config.integer(keys.num_groups, defaults.num_groups)
    if num_heads % groups:
        config.problem(keys.num_groups, f"expected a divisor of {keys.num_heads} ({num_heads}), found {groups}")
        groups = 1
    usual = defaults.head_dim if inner is None else max(inner // num_heads, 1)
    head_dim = usual if config.take(keys.head_dim) == "auto" else config.integer(keys.head_dim, usual)
    if inner is not None and num_heads * head_dim != inner:
        product = f"{keys.num_heads} ({num_heads}) * {keys.head_dim} ({head_dim})"
        config.problem(keys.head_dim, f"expected {product} to be the {inner} features of all heads")
    return SpaceHeads(num_heads, groups, config.integer(keys.state_size, defaults.state_size), head_dim)


def _read_bounds(config: ConfigFields) -> tuple[float, float]:
    """The bounds of steps: two numbers, of which the second may be infinite."""
    found, (least, greatest) = config.take(_STEPS), NO_BOUNDS
    if found is None:
        return NO_BOUNDS
    if isinstance(found, list) and len(found) == 2:
        bounds = [greatest if bound in _INFINITE else bound for bound in found]
        if all(map(_is_number, bounds)) and least <= bounds[0] <= bounds[1] <= greatest:
            return float(bounds[0]), float(bounds[1])
    config.problem(_STEPS, f"expected two numbers, at least 0 and in ascending order, found {shown(found)}")
    return NO_BOUNDS


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
