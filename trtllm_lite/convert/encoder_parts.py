"""Makes the parts of encoders of BERT's kind: learned positions, biases everywhere, and a norm behind each block."""

from collections.abc import Mapping
from dataclasses import dataclass

from trtllm_lite.convert.config_fields import ConfigFields
from trtllm_lite.convert.decoder_fields import read_activation, read_sizes
from trtllm_lite.convert.source_tensors import Tensors
from trtllm_lite.convert.usual_parts import UsualParts, layer_norm
from trtllm_lite.network.decoder import Sizes
from trtllm_lite.network.encoder import Encoder, EncoderEmbedding
from trtllm_lite.network.encoder_layers import EncoderAttention, PostNormLayer
from trtllm_lite.network.ends import Embedding
from trtllm_lite.network.mlp import Activation, PlainMlp
from trtllm_lite.network.weight_expression import WeightExpression


def read_encoder_sizes(config: ConfigFields) -> Sizes:
    """The sizes of an encoder, whose heads share out hidden_size among them."""
    sizes = read_sizes(config)
    if sizes.num_key_value_heads != sizes.num_attention_heads:
        config.problem("num_key_value_heads", f"expected {sizes.num_attention_heads}, that of encoders' queries")
    if sizes.num_attention_heads * sizes.head_dim != sizes.hidden_size:
        config.problem("hidden_size", f"expected {sizes.num_attention_heads} heads of {sizes.head_dim} elements")
    return sizes


@dataclass(frozen=True)
class BertParts(UsualParts):
    """Makes the parts of BERT and similar encoders."""

    activation: Activation

    @classmethod
    def read(cls, config: ConfigFields, names: Mapping[str, str]) -> "BertParts":
        """Read the keys that these models share."""
        config.take("tie_word_embeddings")  # there is no LM head
        norm = layer_norm(config.number("layer_norm_eps", 1e-12))
        return cls(read_encoder_sizes(config), Tensors(names), norm, read_activation(config, default="gelu"))

    def encoder(
        self,
        positions: WeightExpression,
        token_type: WeightExpression | None = None,
        distance_bias: WeightExpression | None = None,
    ) -> Encoder:
        """An encoder whose tokens have ``positions`` [max_positions, hidden] and all one type.

        ``distance_bias`` is that of all layers (see :class:`EncoderAttention`).
        """
        sizes, tensors = self.sizes, self.tensors
        words = tensors.weight("embedding", sizes.vocab_size, sizes.hidden_size)
        norm = self.norm(tensors, "embedding_norm", sizes.hidden_size)
        embedding = EncoderEmbedding(Embedding(words, positions=positions), norm, token_type)
        layers = (self._layer(tensors.of_layer(n), distance_bias) for n in range(sizes.num_hidden_layers))
        return Encoder(sizes, embedding, tuple(layers))

    def _layer(self, tensors: Tensors, distance_bias: WeightExpression | None) -> PostNormLayer:
        hidden, wide = self.sizes.hidden_size, self.sizes.intermediate_size
        projections = self.projections(tensors, qkv_bias=True, output_bias=True)
        up, down = tensors.linear("up_proj", wide, hidden, True), tensors.linear("down_proj", hidden, wide, True)
        return PostNormLayer(
            EncoderAttention(*projections, self.sizes.heads, distance_bias=distance_bias),
            self.norm(tensors, "attention_norm", hidden),
            PlainMlp(up, down, self.activation),
            self.norm(tensors, "mlp_norm", hidden),
        )
