"""Makes the parts of BERT-like encoders: learned positions, biases everywhere, and a norm after each block."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_activation, read_sizes
from trtllm_lite.convert.parts.usual import UsualParts, layer_norm
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Sizes
from trtllm_lite.network.encoder import Encoder, EncoderEmbedding
from trtllm_lite.network.encoder_layers import EncoderAttention, PostNormLayer
from trtllm_lite.network.ends import Embedding
from trtllm_lite.network.mlp import Activation, PlainMlp
from trtllm_lite.network.weight_expression import Concat, MovedRows, Row, WeightExpression

_LAYER = "encoder.layer.{layer}."
BERT_NAMES = {
    "embedding": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
    "q_proj": f"{_LAYER}attention.self.query",
    "k_proj": f"{_LAYER}attention.self.key",
    "v_proj": f"{_LAYER}attention.self.value",
    "o_proj": f"{_LAYER}attention.output.dense",
    "attention_norm": f"{_LAYER}attention.output.LayerNorm",
    "up_proj": f"{_LAYER}intermediate.dense",
    "down_proj": f"{_LAYER}output.dense",
    "mlp_norm": f"{_LAYER}output.LayerNorm",
}


def read_encoder_sizes(config: ConfigFields) -> Sizes:
    """The sizes of an encoder, whose heads divide hidden_size evenly."""
    sizes = read_sizes(config)
    if sizes.num_key_value_heads != sizes.num_attention_heads:
        config.problem("num_key_value_heads", f"expected {sizes.num_attention_heads}, like num_attention_heads")
    if sizes.num_attention_heads * sizes.head_dim != sizes.hidden_size:
        config.problem("hidden_size", f"expected {sizes.num_attention_heads} heads of {sizes.head_dim} elements")
    return sizes


@dataclass(frozen=True)
class BertParts(UsualParts):
    """Makes the parts of BERT and similar encoders."""

    activation: Activation
    unused: int = 0  # learned positions before that of the first token

    @classmethod
    def read(cls, config: ConfigFields, names: Mapping[str, str]) -> "BertParts":
        """Read the keys that these models share."""
        config.take("tie_word_embeddings")  # there is no LM head
        norm = layer_norm(config.number("layer_norm_eps", 1e-12))
        return cls(read_encoder_sizes(config), Tensors(names), norm, read_activation(config, default="gelu"))

    def without_positions(self, config: ConfigFields, count: int) -> "BertParts":
        """The parts of a model that never uses the first ``count`` positions in its config's number of positions."""
        positions = self.sizes.max_position_embeddings - count
        if positions < 1:
            config.problem("max_position_embeddings", f"expected more than {count}, found {positions + count}")
        return replace(self, sizes=replace(self.sizes, max_position_embeddings=max(positions, 1)), unused=count)

    def first_token_type(self, config: ConfigFields, default: int) -> WeightExpression:
        """The row of the token type that all tokens of a text have; ``default`` is the family's number of types."""
        types = config.integer("type_vocab_size", default)
        return Row(self.tensors.weight("token_types", types, self.sizes.hidden_size), 0)

    def encoder(
        self, token_type: WeightExpression | None = None, distance_bias: WeightExpression | None = None
    ) -> Encoder:
        """An encoder whose tokens have learned positions, and all the same type.

        All layers share ``distance_bias`` (see :class:`EncoderAttention`).
        """
        sizes, tensors, unused = self.sizes, self.tensors, self.unused
        rows = unused + sizes.max_position_embeddings
        positions: WeightExpression = tensors.weight("positions", rows, sizes.hidden_size)
        positions = positions.slice(unused, rows) if unused else positions
        words = tensors.weight("embedding", sizes.vocab_size, sizes.hidden_size)
        norm = self.norm(tensors, "embedding_norm", sizes.hidden_size)
        embedding = EncoderEmbedding(Embedding(words, positions=positions), norm, token_type)
        layers = (self._layer(tensors.of_layer(n), distance_bias) for n in range(sizes.num_hidden_layers))
        return Encoder(sizes, embedding, tuple(layers))

    def for_pairs(self, encoder: Encoder, types: int) -> Encoder:
        """``encoder`` with rows of their own for the tokens of a pair's second text, which has the second of ``types``.

        These rows come after those of the vocabulary, and are moved from the first type to the second.
        """
        if types < 2:
            return encoder
        sizes, tokens = encoder.sizes, encoder.embedding.tokens
        both = self.tensors.weight("token_types", types, sizes.hidden_size)
        second = MovedRows((tokens.table, Row(both, 1), Row(both, 0)))
        tokens = replace(tokens, table=Concat((tokens.table.affine(), second)))
        return replace(
            encoder,
            sizes=replace(sizes, vocab_size=2 * sizes.vocab_size),
            embedding=replace(encoder.embedding, tokens=tokens),
            second_text_offset=sizes.vocab_size,
        )

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
