"""``LLM.classify`` against transformers: probabilities by problem type, pairs of texts, errors."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedModel, PreTrainedTokenizerFast, TextClassificationPipeline

from tests.models import BOS, BOS_ID, USER, VOCAB_SIZE, save_tiny_model, tiny_tokenizer
from tests.tolerances import assert_close
from trtllm_lite import LLM, ClassificationOutput
from trtllm_lite.errors import ArgumentError, LimitError

LIMITS = {"max_batch_size": 6, "max_input_len": 90, "max_seq_len": 90, "max_num_tokens": 160}
TEXTS = ["the quick brown fox", "jumps", "over the lazy dog " * 6]
_END = 3  # the id of USER, which no model takes for padding
PAIRS = [("the fox", "jumps over the dog"), ("naïve café", "1 + 1 = 2"), ("dog", "the quick brown fox " * 5)]


def _pair_tokenizer(directory: Path) -> PreTrainedTokenizerFast:
    """Write a tokenizer that puts special tokens around texts, and gives second texts a type of their own."""
    backend = tiny_tokenizer()
    processor = backend.post_processor
    backend.post_processor = TemplateProcessing(
        single=f"{BOS} $A {USER}", pair=f"{BOS} $A {USER} $B:1 {USER}:1", special_tokens=[(BOS, BOS_ID), (USER, _END)]
    )
    backend.save(str(directory / "tokenizer.json"))
    backend.post_processor = processor
    names = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"), model_input_names=names)


def _model(family: str, directory: Path, **overrides: Any) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    model = save_tiny_model(family, directory, classifies=True, **overrides)
    return model, _pair_tokenizer(directory)


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"num_labels": 1},
        {"num_labels": 3},
        {"num_labels": 3, "problem_type": "multi_label_classification"},
        {"num_labels": 2, "problem_type": "single_label_classification"},
        {"num_labels": 2, "problem_type": "regression"},
    ],
    ids=lambda overrides: "-".join(map(str, overrides.values())) or "usual",
)
def test_probabilities_are_those_of_a_pipeline(overrides: dict[str, Any], tmp_path: Path) -> None:
    model, tokenizer = _model("bert", tmp_path / "model", **overrides)
    pipeline = TextClassificationPipeline(model=model, tokenizer=tokenizer, top_k=None)
    with LLM(tmp_path / "model", dtype="float32", **LIMITS) as llm:
        outputs = llm.classify(TEXTS)
    for output, expected in zip(outputs, (pipeline([text])[0] for text in TEXTS), strict=True):
        assert dict(zip(output.labels, output.probs, strict=True)) == pytest.approx(
            {entry["label"]: entry["score"] for entry in expected}, abs=2e-5
        )
        assert output.label == max(expected, key=lambda entry: entry["score"])["label"]


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet", "modernbert"])
def test_pairs_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    """The second text has a token type of its own in BERT alone."""
    model, tokenizer = _model(family, tmp_path / "model", num_labels=2)
    with LLM(tmp_path / "model", dtype="float32", **LIMITS) as llm:
        outputs = llm.classify(PAIRS)
        as_dictionaries = llm.classify([{"text": first, "text_pair": second} for first, second in PAIRS])
        alone = llm.classify(PAIRS[0])
    assert as_dictionaries == outputs
    assert alone == outputs[0]
    for (first, second), output in zip(PAIRS, outputs, strict=True):
        inputs = tokenizer(first, second, return_tensors="pt")
        if family != "bert":
            del inputs["token_type_ids"]
        with torch.no_grad():
            expected = model(**inputs).logits[0].numpy()
        assert_close(np.array(output.logits, np.float32), expected, what="scores")


@pytest.mark.parametrize("qformat", ["int8_wo", "int4_wo"])
def test_quantized_weights(qformat: str, tmp_path: Path) -> None:
    _model("modernbert", tmp_path / "model", num_labels=3, hidden_size=96, intermediate_size=128)
    rows = []
    for options in ({}, {"qformat": qformat, "group_size": 32}):
        with LLM(tmp_path / "model", **options, **LIMITS) as llm:
            rows.append(np.array([output.logits for output in llm.classify(TEXTS)]))
    assert 0.95 < (rows[0] * rows[1]).sum() / np.linalg.norm(rows[0]) / np.linalg.norm(rows[1]) < 1


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """A BERT with named labels."""
    directory = tmp_path_factory.mktemp("classifier") / "model"
    _model("bert", directory, id2label={0: "bad", 1: "fair", 2: "good"})
    with LLM(directory, **LIMITS) as llm:
        yield llm


def test_forms_of_texts(classifier: LLM) -> None:
    assert classifier.tokenizer is not None
    text = TEXTS[0]
    ids = classifier.tokenizer.encode(text)
    one = classifier.classify(text)
    assert isinstance(one, ClassificationOutput)
    assert one.labels == ("bad", "fair", "good")
    assert one.label == one.labels[int(np.argmax(one.probs))]
    assert sum(one.probs) == pytest.approx(1)
    same = [classifier.classify(form) for form in (ids, {"prompt": text}, {"prompt_token_ids": ids})]
    assert [*same, *classifier.classify([text]), *classifier.classify([ids])] == [one] * 5
    assert classifier.classify(TEXTS, priority=3, timeout=600)[0] == one


@pytest.mark.parametrize(
    ("texts", "error", "message"),
    [
        ([], ArgumentError, "there are no prompts"),
        (["one", ("two", "three")], ArgumentError, "a pair of texts is 'one': expected a tuple of two strings"),
        (("one", "two", "three"), ArgumentError, "a pair of texts is "),
        ({"text": "one", "text_pair": "two", "more": "three"}, ArgumentError, "a pair of texts is "),
        ([("one", "two " * 9000)], LimitError, "text_pair of pair 0 has 36,000 characters"),
        ([("dog " * 50, "fox " * 50)], LimitError, "tokens, which exceeds max_input_len 90"),
        ("\ud800", ArgumentError, "not valid Unicode"),
        (("one", "\ud800"), ArgumentError, "not valid Unicode"),
        ([2 * VOCAB_SIZE], ArgumentError, f"the token id {2 * VOCAB_SIZE}"),
    ],
)
def test_bad_texts_are_refused(classifier: LLM, texts: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        classifier.classify(texts)


def test_what_a_classifier_does_not_do(classifier: LLM) -> None:
    message = r"built from a text classifier, which classifies texts \(LLM.classify\), and LLM.embed is of another kind"
    with pytest.raises(ArgumentError, match=message):
        classifier.embed("text")
    with pytest.raises(ArgumentError, match=r"an encoder, which classifies texts \(`LLM.classify`, or /classify of"):
        classifier.generate("text")
    assert not classifier.generates
    assert not classifier.embeds


def test_a_decoder_classifies_nothing(llm: LLM) -> None:
    with pytest.raises(ArgumentError, match=r"built from a decoder, which generates text .* and LLM.classify is"):
        llm.classify("text")
