"""Makes the parts that the Granite models share: Llama's parts with four constant factors.

The factors multiply embeddings, scores (in place of 1/sqrt(head_dim)) and the output of each block, and divide the
logits. In the network, the residual stream is divided by the factor of block outputs, so that blocks add their output
unscaled. Norms cancel the division if their epsilon is divided by the factor's square, and the factor of embeddings
includes it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.rope_types import USUAL_ROPE, RopeDefaults
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES, Tensors
from trtllm_lite.network.attention import Attention
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.ends import Embedding, Head
from trtllm_lite.network.layers import Layer
from trtllm_lite.network.mlp import GatedMlp

GGUF_KEYS = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}


@dataclass(frozen=True)
class GraniteParts:
    """Makes the parts with factors; ``parts`` makes the others. ``bias`` says whether attention has biases."""

    parts: LlamaParts
    bias: bool
    residual: float
    embedding: float
    scores: float
    logits: float

    @classmethod
    def read(
        cls, config: ConfigFields, names: Mapping[str, str] = TENSOR_NAMES, rope: RopeDefaults = USUAL_ROPE
    ) -> "GraniteParts":
        """Read the keys that all Granite models have; absent factors are 1."""
        residual = _factor(config, "residual_multiplier")
        parts = LlamaParts.read(config, names, rope=rope, stream_scale=residual)
        embedding, scores = (_factor(config, f"{key}_multiplier") for key in ("embedding", "attention"))
        logits = _factor(config, "logits_scaling")
        return cls(parts, config.flag("attention_bias"), residual, embedding, scores, logits)

    def attention(self, tensors: Tensors) -> Attention:
        """The attention of one layer."""
        return replace(self.parts.attention(self.parts.projections(tensors, self.bias, self.bias)), scale=self.scores)

    def shared_mlp(self, tensors: Tensors, wide: int) -> GatedMlp:
        """The MLP of ``wide`` inner features that all tokens share, whose gate and up are one tensor."""
        hidden = self.parts.sizes.hidden_size
        gate, up = tensors.linears("shared_gate_up_proj", 2, wide, hidden)
        return GatedMlp(gate, up, tensors.linear("shared_down_proj", hidden, wide), self.parts.activation)

    def decoder(self, config: ConfigFields, layers: tuple[Layer, ...]) -> Decoder:
        """A decoder of ``layers``."""
        parts = self.parts
        table = parts.tensors.weight("embedding", parts.sizes.vocab_size, parts.sizes.hidden_size)
        final_norm = parts.norm(parts.tensors, "final_norm", parts.sizes.hidden_size)
        head = Head(parts.head(config.flag("tie_word_embeddings")), scale=1 / self.logits)
        first = Embedding(table, scale=self.embedding / self.residual)
        return Decoder(parts.sizes, first, layers, final_norm, head, stream_scale=self.residual)


def _factor(config: ConfigFields, key: str) -> float:
    factor = config.number(key, 1.0)
    if 1e-6 <= factor <= 1e6:  # keeps quotients and squares within float32
        return factor
    config.problem(key, f"expected a factor from 1e-6 to 1e6, found {factor}")
    return 1.0
