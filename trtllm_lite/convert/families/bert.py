"""BERT, MiniLM, BGE, E5 and other encoders for embeddings of the class BertModel (arXiv 1810.04805).

Learned positions, a norm behind each block, biases everywhere. The pooler, a layer for training, is left out: what
stands for a text is said by the files of sentence-transformers (:mod:`trtllm_lite.convert.sentence_transformers`).
"""

from trtllm_lite.convert.config_fields import ConfigFields
from trtllm_lite.convert.decoder_fields import read_activation, read_sizes
from trtllm_lite.convert.family import Family
from trtllm_lite.convert.source_tensors import Tensors
from trtllm_lite.convert.usual_parts import UsualParts
from trtllm_lite.network.encoder import Encoder, EncoderAttention, EncoderEmbedding, PostNormLayer
from trtllm_lite.network.ends import Embedding
from trtllm_lite.network.mlp import PlainMlp
from trtllm_lite.network.norms import LayerNorm
from trtllm_lite.network.weight_expression import Row

_LAYER = "encoder.layer.{layer}."
NAMES = {
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


def read_model(config: ConfigFields) -> Encoder:
    """Read the config; all tokens are of the first type, that of a text alone."""
    sizes, activation = read_sizes(config), read_activation(config, default="gelu")
    epsilon, types = config.number("layer_norm_eps", 1e-12), config.integer("type_vocab_size", 2)
    config.expect("position_embedding_type", "absolute")
    config.expect("is_decoder", False)
    config.expect("add_cross_attention", False)
    config.take("tie_word_embeddings")  # there is no LM head
    hidden, wide = sizes.hidden_size, sizes.intermediate_size

    def norm(tensors: Tensors, role: str, size: int) -> LayerNorm:
        return LayerNorm(tensors.weight(role, size), tensors.bias(role, size), epsilon)

    def layer(tensors: Tensors) -> PostNormLayer:
        projections = parts.projections(tensors, qkv_bias=True, output_bias=True)
        up, down = tensors.linear("up_proj", wide, hidden, True), tensors.linear("down_proj", hidden, wide, True)
        return PostNormLayer(
            EncoderAttention(*projections, sizes.heads),
            norm(tensors, "attention_norm", hidden),
            PlainMlp(up, down, activation),
            norm(tensors, "mlp_norm", hidden),
        )

    parts = UsualParts(sizes, Tensors(NAMES), norm)
    tensors = parts.tensors
    words = tensors.weight("embedding", sizes.vocab_size, hidden)
    positions = tensors.weight("positions", sizes.max_position_embeddings, hidden)
    embedding = EncoderEmbedding(
        Embedding(words, positions=positions),
        Row(tensors.weight("token_types", types, hidden), 0),
        norm(tensors, "embedding_norm", hidden),
    )
    return Encoder(sizes, embedding, tuple(layer(tensors.of_layer(n)) for n in range(sizes.num_hidden_layers)))


FAMILY = Family(
    name="bert",
    architectures=("BertModel",),
    read_model=read_model,
    tensor_names=NAMES,
    ignored_tensors=(r"pooler\.dense\.(weight|bias)",),
)
