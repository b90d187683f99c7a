"""BERT, MiniLM, BGE, E5 and other encoders for embeddings of the class BertModel (arXiv 1810.04805).

Learned positions, a norm behind each block, biases everywhere. The pooler, a layer for training, is left out: what
stands for a text is said by the files of sentence-transformers (:mod:`trtllm_lite.convert.sentence_transformers`).
"""

from trtllm_lite.convert.config_fields import ConfigFields
from trtllm_lite.convert.encoder_parts import BertParts
from trtllm_lite.convert.family import Family
from trtllm_lite.network.encoder import Encoder
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
    parts, types = BertParts.read(config, NAMES), config.integer("type_vocab_size", 2)
    config.expect("position_embedding_type", "absolute")
    config.expect("is_decoder", False)
    config.expect("add_cross_attention", False)
    hidden = parts.sizes.hidden_size
    positions = parts.tensors.weight("positions", parts.sizes.max_position_embeddings, hidden)
    return parts.encoder(positions, Row(parts.tensors.weight("token_types", types, hidden), 0))


FAMILY = Family(
    name="bert",
    architectures=("BertModel",),
    read_model=read_model,
    tensor_names=NAMES,
    ignored_tensors=(r"pooler\.dense\.(weight|bias)",),
)
