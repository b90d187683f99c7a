"""RoBERTa and XLM-R, encoders such as bge-m3, and classifiers such as bge-reranker (arXiv 1907.11692, 1911.02116).

They are BERT models whose positions begin after the padding token's id, with a single token type.
"""

from trtllm_lite.convert.family import Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.classification import CLASSIFIER, DENSE, with_head
from trtllm_lite.convert.parts.encoder import BERT_NAMES, BertParts
from trtllm_lite.network.encoder import Encoder

NAMES = {
    **{role: f"roberta.{name}" for role, name in BERT_NAMES.items()},
    **{DENSE: "classifier.dense", CLASSIFIER: "classifier.out_proj"},
}
_TASKS = ("Model", "ForMaskedLM", "ForSequenceClassification")


def read_model(config: ConfigFields) -> Encoder:
    """Read the config; its ``max_position_embeddings`` includes positions that no token has."""
    parts = BertParts.read(config, NAMES)
    parts = parts.without_positions(config, config.integer("pad_token_id", 1, minimum=0) + 1)
    config.expect("position_embedding_type", "absolute")
    config.expect("is_decoder", False)
    config.expect("add_cross_attention", False)
    return with_head(parts.encoder(parts.first_token_type(config, 2)), config, parts.tensors)


FAMILY = Family(
    name="roberta",
    architectures=tuple(f"{name}{task}" for name in ("Roberta", "XLMRoberta") for task in _TASKS),
    read_model=read_model,
    tensor_names=NAMES,
    ignored_tensors=(r"(roberta\.)?pooler\.dense\.(weight|bias)", r"lm_head\..*"),
    optional_prefix="roberta.",
)
