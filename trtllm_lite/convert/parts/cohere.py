"""Makes the parts that Command R's two generations share (cohere and cohere2 in transformers).

The models have LayerNorm without bias, attention and MLP in parallel (arXiv 2204.02311), logits scaled by a constant,
and RoPE that rotates neighbouring elements: the rows of queries and keys are reordered to the usual form.
"""

from dataclasses import dataclass, replace

from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_activation, read_sizes
from trtllm_lite.convert.fields.rope import read_rope
from trtllm_lite.convert.fields.rope_types import RopeDefaults
from trtllm_lite.convert.parts.usual import UsualParts, layer_norm
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES, Tensors
from trtllm_lite.network.attention import Attention
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.ends import Head
from trtllm_lite.network.layers import Layer, ParallelLayer
from trtllm_lite.network.mlp import Activation
from trtllm_lite.network.rope import Rope

# Keys of published configs of the second generation that transformers does not read, as it supports no other values.
EXPECTED = {
    "order_of_interleaved_layers": "local_attn_first",
    "position_embedding_type": "rope_gptj",
    "rotary_pct": 1.0,
    "use_embedding_sharing": True,
    "use_gated_activation": True,
    "use_parallel_block": True,
}
GGUF_KEYS = {"attention.layer_norm_epsilon": "layer_norm_eps", "logit_scale": "logit_scale"}


@dataclass(frozen=True)
class CohereParts(UsualParts):
    """The parts; ``bias`` says whether attention's four projections have biases."""

    rope: Rope
    activation: Activation
    bias: bool

    @classmethod
    def read(cls, config: ConfigFields, rope: RopeDefaults) -> "CohereParts":
        """Read the keys that both generations share."""
        sizes, norm = read_sizes(config), layer_norm(config.number("layer_norm_eps", 1e-5), bias=False)
        config.expect("use_qk_norm", False)
        rotation = read_rope(config, sizes.head_dim, sizes.max_position_embeddings, rope)
        bias = config.flag("attention_bias")
        return cls(sizes, Tensors(TENSOR_NAMES), norm, rotation, read_activation(config), bias)

    def attention(self, tensors: Tensors) -> Attention:
        """Attention over all tokens, with RoPE."""
        projections = self.projections(tensors, self.bias, self.bias).rotating_halves(self.sizes, self.rope)
        return Attention(*projections, self.sizes.heads, rope=self.rope)

    def layer(self, tensors: Tensors, attention: Attention) -> ParallelLayer:
        """A layer whose attention and MLP share a norm."""
        norm = self.norm(tensors, "attention_norm", self.sizes.hidden_size)
        return ParallelLayer(norm, attention, self.gated_mlp(tensors, self.activation))

    def scaled_decoder(self, config: ConfigFields, layers: tuple[Layer, ...]) -> Decoder:
        """A decoder of ``layers`` whose logits are scaled."""
        decoder = self.decoder(config, layers, tied=True)
        return replace(decoder, head=Head(decoder.head.linear, scale=config.number("logit_scale", 0.0625)))
