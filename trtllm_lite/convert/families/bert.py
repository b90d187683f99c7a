"""BERT, MiniLM, BGE, E5 and other encoders for embeddings, and BERT classifiers (arXiv 1810.04805).

The models have learned positions, a norm after each block, and biases everywhere. The pooler, a layer for training, is
the head of classifiers, and left out of encoders for embeddings, whose pooling of a text is read from the files of
sentence-transformers (:mod:`trtllm_lite.convert.sources.sentence_transformers`).
"""

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.classification import CLASSIFIER, DENSE, with_head
from trtllm_lite.convert.parts.encoder import BERT_NAMES, BertParts
from trtllm_lite.network.encoder import Encoder

NAMES = {
    **{role: f"bert.{name}" for role, name in BERT_NAMES.items()},
    **{DENSE: "bert.pooler.dense", CLASSIFIER: "classifier"},
}
# Keys of the first BERT's config, which many Chinese models have as well.
_OF_POOLER = (
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
)


def read_model(config: ConfigFields) -> Encoder:
    """Read the config; all tokens are of the first type, but for those of a pair's second text in a classifier."""
    parts = BertParts.read(config, NAMES)
    config.expect("directionality", "bidi")
    for key in _OF_POOLER:
        config.take(key)
    config.expect("position_embedding_type", "absolute")
    config.expect("is_decoder", False)
    config.expect("add_cross_attention", False)
    encoder = with_head(parts.encoder(parts.first_token_type(config, 2)), config, parts.tensors)
    return encoder if encoder.head is None else parts.for_pairs(encoder, config.integer("type_vocab_size", 2))


FAMILY = Family(
    name="bert",
    architectures=("BertModel", "BertForSequenceClassification"),
    read_model=read_model,
    tensor_names=NAMES,
    ignored_tensors=(r"(bert\.)?pooler\.dense\.(weight|bias)",),
    optional_prefix="bert.",
    gguf=Gguf(
        "bert",
        roles={
            "position_embd": "positions",
            "token_types": "token_types",
            "token_embd_norm": "embedding_norm",
            "blk.{layer}.attn_output_norm": "attention_norm",
            "blk.{layer}.layer_output_norm": "mlp_norm",
        },
        keys={"attention.layer_norm_epsilon": "layer_norm_eps", "attention.causal": "is_decoder"},
        config=lambda _: {"rope_parameters": None},
    ),
)
