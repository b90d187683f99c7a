"""Makes the heads of transformers' classes for the classification of texts, such as BertForSequenceClassification."""

from dataclasses import replace
from typing import Any

from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.errors import shown
from trtllm_lite.network.classification import TANH, ClassificationHead
from trtllm_lite.network.encoder import Encoder
from trtllm_lite.network.mlp import Activation
from trtllm_lite.network.norms import Norm
from trtllm_lite.network.pooling import Pooling

_CLASS = "ForSequenceClassification"
_DEFAULT_LABELS = 2
_MAX_LABELS = 1 << 16
_PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")
# The roles of the tensors of a head, in the ``tensor_names`` of families.
DENSE, NORM, CLASSIFIER = "head_dense", "head_norm", "classifier"


def with_head(
    encoder: Encoder,
    config: ConfigFields,
    tensors: Tensors,
    activation: Activation = TANH,
    norm: Norm | None = None,
    *,
    dense_bias: bool = True,
    takes_mean: bool = False,
) -> Encoder:
    """``encoder``, with a head if the config is that of a classifier; dropout does nothing at inference.

    The head reads the first row of a text, or with ``takes_mean`` the mean; ``norm`` comes after the ``activation``.
    """
    if not _is_classifier(config):
        return encoder
    config.take("sentence_transformers")  # the activation of CrossEncoder, and a version
    labels, hidden = _read_labels(config), encoder.sizes.hidden_size
    config.expect("problem_type", *_PROBLEM_TYPES)
    head = ClassificationHead(
        tensors.linear(DENSE, hidden, hidden, dense_bias),
        activation,
        norm,
        tensors.linear(CLASSIFIER, len(labels), hidden, True),
        labels,
        config.take("problem_type") or "",
    )
    return replace(encoder, pooling=Pooling(first=not takes_mean), head=head)


def _is_classifier(config: ConfigFields) -> bool:
    names = config.take("architectures")
    return isinstance(names, list) and any(isinstance(name, str) and name.endswith(_CLASS) for name in names)


def _read_labels(config: ConfigFields) -> tuple[str, ...]:
    """The names of the scores: of ``id2label``, or else LABEL_0, LABEL_1 and so on, two unless ``num_labels`` says."""
    given: Any = config.take("id2label")
    if given is None:
        count = config.integer("num_labels", _DEFAULT_LABELS, maximum=_MAX_LABELS)
        return tuple(f"LABEL_{number}" for number in range(count))
    keys = [str(number) for number in range(len(given))] if isinstance(given, dict) else []
    if not 1 <= len(keys) <= _MAX_LABELS or set(keys) != set(map(str, given)):
        config.problem("id2label", f"expected names of the labels 0, 1 and so on, found {shown(given)}")
        return ("LABEL_0",)
    names = {str(key): name for key, name in given.items()}
    return tuple(str(names[key]) for key in keys)
