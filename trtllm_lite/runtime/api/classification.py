"""Classifies texts and pairs of texts, for ``LLM.classify``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.errors import ArgumentError, shown
from trtllm_lite.runtime.session.embedder import Embedder
from trtllm_lite.runtime.session.prompts import Prompt, check_chars, checked_ids, is_token_ids, parse_prompts
from trtllm_lite.runtime.values import is_list

TextPair = tuple[str, str] | Mapping[str, str]
"""Forms of a pair of texts: a tuple, or {"text": first, "text_pair": second}."""
_KEYS = {"text", "text_pair"}
_PAIR = 'a tuple of two strings or {"text": first, "text_pair": second}'


@dataclass(frozen=True)
class ClassificationOutput:
    """What a classifier says of a text, or of a pair of texts.

    ``logits`` are its scores of the ``labels``, and ``probs`` what they mean, as in transformers' pipeline: a softmax
    of several labels; the sigmoid of each if there is one label, or if labels do not exclude each other; the scores
    themselves for regression. ``label`` is the label of the largest.
    """

    labels: tuple[str, ...]
    logits: list[float]
    probs: list[float]

    @property
    def label(self) -> str:
        """The name of the label with the largest score."""
        return self.labels[int(np.argmax(self.logits))]


def classification_outputs(model: Embedder, logits: NDArray[np.float32]) -> list[ClassificationOutput]:
    """The outputs for the rows of scores ``logits`` [texts, labels] that ``model`` computed."""
    config, count = model.manifest.model, logits.shape[1]
    labels = tuple(config.labels) or tuple(f"LABEL_{number}" for number in range(count))
    probs = probabilities(logits, config.problem_type)
    rows = zip(logits.tolist(), probs.tolist(), strict=True)
    return [ClassificationOutput(labels, scores, shares) for scores, shares in rows]


def probabilities(logits: NDArray[np.float32], problem_type: str) -> NDArray[np.float32]:
    """Scores [texts, labels] as probabilities; those of ``problem_type`` regression are none, and stay as they are."""
    if problem_type == "regression":
        return logits
    wide = logits.astype(np.float64)
    if problem_type == "multi_label_classification" or wide.shape[1] == 1:
        return np.exp(-np.logaddexp(0, -wide)).astype(np.float32)
    shares = np.exp(wide - wide.max(1, keepdims=True))
    return (shares / shares.sum(1, keepdims=True)).astype(np.float32)


def parse_texts(inputs: Sequence[Any], model: Embedder) -> list[NDArray[np.int32]]:
    """Token ids of texts, of prompts of token ids, or of pairs of texts; the forms do not mix.

    Raises ArgumentError and LimitError like :func:`parse_prompts`.
    """
    tokenizer, config, longest = model.tokenizer, model.manifest.model, model.limits.max_input_len
    if not any(map(is_pair, inputs)):
        parsed = parse_prompts(inputs, None, tokenizer, config.vocab_size, longest)
        if any(embeds is not None for embeds in parsed.embeds):
            raise ArgumentError("prompt_embeds is given, and a classifier takes texts and token ids: leave it out")
        return parsed.token_ids
    if tokenizer is None:
        raise ArgumentError("this engine has no tokenizer: pass token ids, or convert a model that has tokenizer.json")
    found = []
    for row, (first, second) in enumerate(map(_as_pair, inputs)):
        for name, text in (("text", first), ("text_pair", second)):
            check_chars(f"{name} of pair {row}", text, tokenizer, longest)
        ids = tokenizer.encode_pair(first, second, config.second_text_offset)
        found.append(checked_ids(f"pair {row}", np.asarray(ids), config.vocab_size))
    return found


def is_pair(value: Any) -> bool:
    """Whether ``value`` is a pair of texts: a tuple of strings, or a dictionary with ``text_pair``."""
    if isinstance(value, tuple):
        return any(isinstance(text, str) for text in value)
    return isinstance(value, Mapping) and "text_pair" in value


def _as_pair(value: Any) -> tuple[str, str]:
    texts: Any = value
    if isinstance(value, Mapping):
        texts = (value.get("text"), value.get("text_pair")) if value.keys() == _KEYS else ()
    if not isinstance(texts, tuple) or len(texts) != 2 or not all(isinstance(text, str) for text in texts):
        raise ArgumentError(f"a pair of texts is {shown(value)}: expected {_PAIR}, and pairs alone")
    return texts


def classify_texts(
    model: Embedder,
    texts: Prompt | TextPair | Sequence[Prompt | TextPair],
    *,
    priority: int,
    timeout: float | None,
) -> ClassificationOutput | list[ClassificationOutput]:
    """Implements ``LLM.classify``."""
    is_single = is_pair(texts) or is_token_ids(texts) or not is_list(texts)
    inputs: Any = [texts] if is_single else texts
    logits = model.embed(parse_texts(inputs, model), priority=priority, timeout=timeout)
    outputs = classification_outputs(model, logits)
    return outputs[0] if is_single else outputs
