"""RoBERTa and XLM-R, encoders for embeddings such as bge-m3 and multilingual-e5 (arXiv 1907.11692, 1911.02116).

They are BERT models whose positions begin after the padding token's id, with a single token type.
"""

from trtllm_lite.convert.family import Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.encoder import BERT_NAMES, BertParts
from trtllm_lite.network.encoder import Encoder

NAMES = {role: f"roberta.{name}" for role, name in BERT_NAMES.items()}


def read_model(config: ConfigFields) -> Encoder:
    """Read the config; its ``max_position_embeddings`` includes positions that no token has."""
    parts = BertParts.read(config, NAMES)
    parts = parts.without_positions(config, config.integer("pad_token_id", 1, minimum=0) + 1)
    config.expect("position_embedding_type", "absolute")
    config.expect("is_decoder", False)
    config.expect("add_cross_attention", False)
    return parts.encoder(parts.first_token_type(config, 2))


FAMILY = Family(
    name="roberta",
    architectures=("RobertaModel", "RobertaForMaskedLM", "XLMRobertaModel", "XLMRobertaForMaskedLM"),
    read_model=read_model,
    tensor_names=NAMES,
    ignored_tensors=(r"(roberta\.)?pooler\.dense\.(weight|bias)", r"lm_head\..*"),
    optional_prefix="roberta.",
)
