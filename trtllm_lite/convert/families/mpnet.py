"""MPNet, encoders such as all-mpnet-base-v2, and classifiers (arXiv 2004.09297): BERT with a bias by distance.

All layers add the same biases to scores, one for each head and bucket of distances (arXiv 1910.10683, section 2.1). The
first two of the learned positions are never used.
"""

import math

import numpy as np

from trtllm_lite.convert.family import Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.classification import CLASSIFIER, DENSE, with_head
from trtllm_lite.convert.parts.encoder import BertParts
from trtllm_lite.network.encoder import Encoder
from trtllm_lite.network.weight_expression import Columns

_LAYER = "mpnet.encoder.layer.{layer}."
NAMES = {
    "embedding": "mpnet.embeddings.word_embeddings",
    "positions": "mpnet.embeddings.position_embeddings",
    "embedding_norm": "mpnet.embeddings.LayerNorm",
    "distance_bias": "mpnet.encoder.relative_attention_bias",
    "q_proj": f"{_LAYER}attention.attn.q",
    "k_proj": f"{_LAYER}attention.attn.k",
    "v_proj": f"{_LAYER}attention.attn.v",
    "o_proj": f"{_LAYER}attention.attn.o",
    "attention_norm": f"{_LAYER}attention.LayerNorm",
    "up_proj": f"{_LAYER}intermediate.dense",
    "down_proj": f"{_LAYER}output.dense",
    "mlp_norm": f"{_LAYER}output.LayerNorm",
    **{DENSE: "classifier.dense", CLASSIFIER: "classifier.out_proj"},
}
_UNUSED_POSITIONS = 2  # the position of the padding token, which is 1, and the one before
_BUCKETS, _MOST_DISTANCE = 32, 128


def bucket(distance: int) -> int:
    """The bucket of a key ``distance`` tokens after its query (negative: before it), as transformers rounds it.

    Half of the buckets are for keys after the query. In each half the first buckets hold one distance each, and the
    others grow wider up to _MOST_DISTANCE.
    """
    half, exact, far = _BUCKETS // 2, _BUCKETS // 4, abs(distance)
    if far >= exact:
        share = np.log(np.float32(far) / np.float32(exact)) / np.float32(math.log(_MOST_DISTANCE / exact))
        far = min(exact + int(share * np.float32(half - exact)), half - 1)
    return far + (half if distance > 0 else 0)


def read_model(config: ConfigFields) -> Encoder:
    """Read the config; the models have 32 buckets, whatever their config says."""
    parts = BertParts.read(config, NAMES).without_positions(config, _UNUSED_POSITIONS)
    config.expect("relative_attention_num_buckets", _BUCKETS)
    table = parts.tensors.weight("distance_bias", _BUCKETS, parts.sizes.num_attention_heads)
    buckets = tuple(bucket(distance) for distance in range(-_MOST_DISTANCE, _MOST_DISTANCE + 1))
    return with_head(parts.encoder(distance_bias=Columns(table.transpose(), buckets)), config, parts.tensors)


FAMILY = Family(
    name="mpnet",
    architectures=("MPNetModel", "MPNetForMaskedLM", "MPNetForSequenceClassification"),
    read_model=read_model,
    tensor_names=NAMES,
    ignored_tensors=(r"(mpnet\.)?pooler\.dense\.(weight|bias)", r"lm_head\..*"),
    optional_prefix="mpnet.",
)
