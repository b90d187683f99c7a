"""Makes the parts that GLM-4's two generations share (arXiv 2406.12793; glm and glm4 in transformers).

RoPE rotates neighbouring elements of the first half of each head, queries, keys and values have biases, and gate and up
are one tensor.
"""

from dataclasses import dataclass

from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.rope_types import RopeDefaults
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES, Tensors
from trtllm_lite.network.attention import Attention
from trtllm_lite.network.mlp import GatedMlp

NAMES = {**TENSOR_NAMES, "gate_up_proj": "model.layers.{layer}.mlp.gate_up_proj"}
GGUF_ROLES = {"blk.{layer}.ffn_up": "gate_up_proj"}


@dataclass(frozen=True)
class GlmParts:
    """Makes the blocks of a layer; ``bias`` says whether queries, keys and values have biases."""

    usual: LlamaParts
    bias: bool

    @classmethod
    def read(cls, config: ConfigFields, names: dict[str, str] = NAMES) -> "GlmParts":
        """Read the keys that both generations share."""
        usual = LlamaParts.read(config, names, epsilon=1.5625e-07, rope=RopeDefaults(part=0.5))
        return cls(usual, config.flag("attention_bias", True))

    def blocks(self, tensors: Tensors) -> tuple[Attention, GatedMlp]:
        """Attention and MLP of a layer."""
        usual = self.usual
        projections = usual.projections(tensors, self.bias).rotating_halves(usual.sizes, usual.rope)
        return usual.attention(projections), usual.gate_up_mlp(tensors, usual.activation)
