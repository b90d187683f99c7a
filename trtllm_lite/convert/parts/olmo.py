"""Makes the parts that OLMo 2 and 3 share (arXiv 2501.00656, section 3; https://github.com/allenai/OLMo-core).

A norm follows each block and none precedes it; queries and keys are normalised before RoPE, all heads together.
"""

from dataclasses import dataclass

from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_activation, read_sizes
from trtllm_lite.convert.parts.usual import UsualParts, rms_norm
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES, Tensors
from trtllm_lite.network.attention import Attention
from trtllm_lite.network.layers import Residual, SequentialLayer
from trtllm_lite.network.mlp import Activation
from trtllm_lite.network.rope import Rope

NAMES = {
    **{role: name for role, name in TENSOR_NAMES.items() if role not in ("attention_norm", "mlp_norm")},
    "attention_post_norm": "model.layers.{layer}.post_attention_layernorm",
    "mlp_post_norm": "model.layers.{layer}.post_feedforward_layernorm",
}


@dataclass(frozen=True)
class OlmoParts(UsualParts):
    """The parts; ``bias`` says whether attention's four projections have biases."""

    activation: Activation
    bias: bool

    @classmethod
    def read(cls, config: ConfigFields) -> "OlmoParts":
        """Read the keys that both generations share."""
        norm, activation = rms_norm(config, 1e-5), read_activation(config)
        return cls(read_sizes(config), Tensors(NAMES), norm, activation, config.flag("attention_bias"))

    def layer(self, tensors: Tensors, rope: Rope, window: int = 0) -> SequentialLayer:
        """A layer whose attention has a ``window`` in tokens; 0 means all tokens."""
        sizes, heads = self.sizes, self.sizes.heads
        attention = Attention(
            *self.projections(tensors, self.bias, self.bias),
            heads,
            rope=rope,
            query_norm=self.norm(tensors, "q_norm", heads.num_heads * heads.head_dim),
            key_norm=self.norm(tensors, "k_norm", heads.num_kv_heads * heads.head_dim),
            norms_all_heads=True,
            window=window,
        )
        norms = [self.norm(tensors, role, sizes.hidden_size) for role in ("attention_post_norm", "mlp_post_norm")]
        mlp = self.gated_mlp(tensors, self.activation)
        return SequentialLayer(Residual(None, attention, norms[0]), Residual(None, mlp, norms[1]))
