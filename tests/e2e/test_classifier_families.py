"""Classifiers of every family of encoders, from a Hugging Face directory to scores, against transformers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedModel

from tests.classifiers import expected_scores
from tests.models import ENCODER_FAMILIES, VOCAB_SIZE, round_matrices, save_tiny_model
from tests.tolerances import assert_close
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.errors import ConvertError
from trtllm_lite.network.config import ModelConfig
from trtllm_lite.runtime.session.embedder import Embedder
from trtllm_lite.runtime.session.limits import RunnerOptions
from trtllm_lite.runtime.session.opening import open_model

LIMITS = {"max_batch_size": 6, "max_input_len": 320, "max_seq_len": 320, "max_num_tokens": 640}
POSITIONS = {"bert": 330, "roberta": 333, "mpnet": 332, "modernbert": 330}
LENGTHS = (1, 2, 3, 17, 63, 64, 65, 128, 200, 320)


def _texts(seed: int = 0) -> list[list[int]]:
    """Texts contain no padding tokens, for which transformers has no positions."""
    generator = np.random.default_rng(seed)
    return [generator.integers(3, VOCAB_SIZE, length).tolist() for length in generator.permutation(LENGTHS)]


def _save(family: str, directory: Path, **overrides: Any) -> PreTrainedModel:
    overrides = {"max_position_embeddings": POSITIONS[family], **overrides}
    return save_tiny_model(family, directory, classifies=True, **overrides)


def _scores(directory: Path, dtype: str, texts: list[list[int]]) -> np.ndarray:
    convert_checkpoint(str(directory / "model"), directory / "checkpoint", dtype=dtype)
    build_engine(directory / "checkpoint", directory / "engine", **LIMITS)
    model = open_model(directory / "engine", 0, RunnerOptions())
    assert isinstance(model, Embedder)
    try:
        return model.embed([np.array(text, np.int32) for text in texts])
    finally:
        model.close()


@pytest.mark.parametrize("num_labels", [1, 3])
@pytest.mark.parametrize("family", ENCODER_FAMILIES)
def test_scores_are_those_of_transformers(family: str, num_labels: int, tmp_path: Path) -> None:
    model, texts = _save(family, tmp_path / "model", num_labels=num_labels), _texts()
    rows = _scores(tmp_path, "float32", texts)
    assert rows.shape == (len(texts), num_labels)
    assert_close(rows, expected_scores(model, texts), what="scores")


@pytest.mark.parametrize("family", ENCODER_FAMILIES)
def test_matrices_of_16_bits(family: str, tmp_path: Path) -> None:
    """Some machines round activations to bfloat16, too."""
    model, texts = round_matrices(_save(family, tmp_path / "model", num_labels=4), "bfloat16"), _texts()
    rows, expected = _scores(tmp_path, "bfloat16", texts), expected_scores(model, texts)
    assert (rows * expected).sum() / np.linalg.norm(rows) / np.linalg.norm(expected) > 0.999


@pytest.mark.parametrize(
    "overrides", [{"classifier_pooling": "mean"}, {"classifier_bias": True, "norm_bias": False}], ids=["mean", "biases"]
)
def test_heads_of_modernbert(overrides: dict[str, Any], tmp_path: Path) -> None:
    model, texts = _save("modernbert", tmp_path / "model", **overrides), _texts()
    assert_close(_scores(tmp_path, "float32", texts), expected_scores(model, texts), what="scores")


@pytest.mark.parametrize(
    ("overrides", "labels", "problem_type"),
    [
        ({}, ["LABEL_0", "LABEL_1"], ""),
        ({"num_labels": 1}, ["LABEL_0"], ""),
        (
            {"id2label": {0: "bad", 1: "fair", 2: "good"}, "problem_type": "multi_label_classification"},
            ["bad", "fair", "good"],
            "multi_label_classification",
        ),
    ],
)
def test_labels_travel_with_the_engine(
    overrides: dict[str, Any], labels: list[str], problem_type: str, tmp_path: Path
) -> None:
    _save("bert", tmp_path / "model", **overrides)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    config = ModelConfig.from_dir(tmp_path / "checkpoint")
    assert (config.labels, config.problem_type) == (labels, problem_type)
    manifest = build_engine(tmp_path / "checkpoint", tmp_path / "engine", **LIMITS)
    assert (manifest.model.labels, manifest.model.problem_type) == (labels, problem_type)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("bert", {"id2label": {"0": "one", "2": "two"}}, "id2label: expected names of the labels 0, 1 and so on"),
        ("bert", {"problem_type": "ranking"}, "problem_type: expected 'regression' or .* found 'ranking'"),
        ("modernbert", {"classifier_pooling": "max"}, "classifier_pooling: expected 'cls' or 'mean', found 'max'"),
        ("roberta", {"num_labels": 5}, r"classifier.out_proj.weight \(expected \[5, 60\], found \[2, 60\]\)"),
        ("roberta", {"architectures": ["RobertaModel"]}, r"unused \(4\): classifier.dense.bias"),
    ],
)
def test_configs_of_other_heads_are_refused(family: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    _save(family, tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(ConvertError, match=message):
        convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
