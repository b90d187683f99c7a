"""Applies the constant factors of Falcon-H1 (arXiv 2507.22448) to the parts of its layers.

Factors of vectors, of attention's scores and of biases are folded into these, which are in float32. Factors of matrices
stay factors of their results: folded, they would round the matrices once more.
"""

from dataclasses import dataclass, replace

from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.errors import shown
from trtllm_lite.network.attention import Attention
from trtllm_lite.network.linear import Linear
from trtllm_lite.network.mamba2 import Mamba2
from trtllm_lite.network.mlp import GatedMlp
from trtllm_lite.network.norms import Norm, RmsNorm
from trtllm_lite.network.scaled import ScaledLinear, ScaledSilu

_LEAST, _GREATEST = 1e-6, 1e6  # keep quotients and squares within float32


@dataclass(frozen=True)
class FalconFactors:
    """The factors, which are 1 where a config has none.

    ``gates``, ``steps`` and ``inputs``, which are those of x, B and C, are of the parts of Mamba-2's first projection;
    ``mlp_gate`` and ``mlp_out`` are of the MLP's gate and results.
    """

    embedding: float
    logits: float
    keys: float
    attention_in: float
    attention_out: float
    mamba_in: float
    mamba_out: float
    gates: float
    inputs: tuple[float, float, float]
    steps: float
    mlp_gate: float
    mlp_out: float

    @classmethod
    def read(cls, config: ConfigFields) -> "FalconFactors":
        """Read the keys ``…_multiplier`` and ``…_multipliers``."""
        gates, x, b, c, steps = _factors(config, "ssm_multipliers", 5)
        mlp_gate, mlp_out = _factors(config, "mlp_multipliers", 2)
        return cls(
            embedding=_factor(config, "embedding_multiplier"),
            logits=_factor(config, "lm_head_multiplier"),
            keys=_factor(config, "key_multiplier"),
            attention_in=_factor(config, "attention_in_multiplier"),
            attention_out=_factor(config, "attention_out_multiplier"),
            mamba_in=_factor(config, "ssm_in_multiplier"),
            mamba_out=_factor(config, "ssm_out_multiplier"),
            gates=gates,
            inputs=(x, b, c),
            steps=steps,
            mlp_gate=mlp_gate,
            mlp_out=mlp_out,
        )

    @property
    def of_attention(self) -> float:
        """The factor of what :meth:`attention` makes."""
        return self._reads * self.attention_out

    @property
    def _reads(self) -> float:
        """The factor of what attention reads, of the normalised activations, which have the factor of Mamba-2."""
        return self.attention_in / self.mamba_in

    def norm(self, norm: Norm) -> RmsNorm:
        """The norm before both mixers."""
        assert isinstance(norm, RmsNorm)
        return replace(norm, weight=norm.weight.affine(self.mamba_in))

    def attention(self, attention: Attention) -> Attention:
        """Attention whose projections have no factors: queries, keys and values lack that of what it reads."""
        scale = attention.heads.head_dim**-0.5 * self.keys * self._reads**2
        own = 1 / self._reads
        assert attention.key is not None
        assert attention.value is not None
        return replace(
            attention,
            query=_with_bias(attention.query, own),
            key=_with_bias(attention.key, own),
            value=_with_bias(attention.value, own),
            output=_with_bias(attention.output, own),
            scale=scale,
        )

    def mamba(self, mamba: Mamba2) -> Mamba2:
        """Mamba-2; the factor of its results is that of its gated states, or of its norm if it has one."""
        assert isinstance(mamba.xbc, Linear)
        assert isinstance(mamba.dt, Linear)
        norm, factor = mamba.norm, self.mamba_out
        if norm is not None:
            norm, factor = replace(norm, weight=norm.weight.affine(factor)), 1.0
        return replace(
            mamba,
            xbc=ScaledLinear(mamba.xbc, self.inputs, mamba.heads.parts),
            dt=ScaledLinear(mamba.dt, (self.steps,), (mamba.heads.num_heads,)),
            norm=norm,
            output=_with_bias(mamba.output, self.mamba_out),
            gating=ScaledSilu(self.gates, factor),
        )

    def mlp(self, mlp: GatedMlp) -> GatedMlp:
        """The MLP; one without factors keeps its activation."""
        if self.mlp_gate == self.mlp_out == 1:
            return mlp
        return replace(mlp, down=_with_bias(mlp.down, self.mlp_out), activation=ScaledSilu(self.mlp_gate, self.mlp_out))


def _with_bias(linear: Linear, factor: float) -> Linear:
    """``linear`` with its bias, if it has one, multiplied by ``factor``."""
    return linear if linear.bias is None else replace(linear, bias=linear.bias.affine(factor))


def _factor(config: ConfigFields, key: str) -> float:
    factor = config.number(key, 1.0)
    if _LEAST <= factor <= _GREATEST:
        return factor
    config.problem(key, f"expected a factor from {_LEAST} to {_GREATEST}, found {factor}")
    return 1.0


def _factors(config: ConfigFields, key: str, count: int) -> list[float]:
    """The list ``key`` of ``count`` factors."""
    found = config.take(key)
    if found is None:
        return [1.0] * count
    are_factors = isinstance(found, list) and all(type(value) in (int, float) for value in found)
    if are_factors and len(found) == count and all(_LEAST <= value <= _GREATEST for value in found):
        return [float(value) for value in found]
    config.problem(key, f"expected {count} factors from {_LEAST} to {_GREATEST}, found {shown(found)}")
    return [1.0] * count
