"""What the files of sentence-transformers say of an encoder, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.encoders import write_pooling
from trtllm_lite.convert import sentence_transformers
from trtllm_lite.convert.metadata.ignored import IgnoredKeys
from trtllm_lite.convert.source import Embeddings
from trtllm_lite.errors import ConvertError
from trtllm_lite.network.pooling import Pooling


def read_embeddings(path: Path, *ignored: str) -> Embeddings:
    files = sentence_transformers.EmbeddingFiles.read(path, IgnoredKeys(ignored))
    return sentence_transformers.read_embeddings(files)


def test_without_files_it_is_the_mean(tmp_path: Path) -> None:
    assert read_embeddings(tmp_path) == Embeddings(Pooling(), None)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_modes(tmp_path: Path, first: bool, normalize: bool) -> None:
    modes = {"pooling_mode_mean_tokens": not first, "pooling_mode_cls_token": first, "include_prompt": True}
    write_pooling(tmp_path, normalize, **modes)
    assert read_embeddings(tmp_path) == Embeddings(Pooling(first, normalize))


@pytest.mark.parametrize(("mode", "first"), [("mean", False), (["cls"], True)])
def test_modes_as_version_6_writes_them(tmp_path: Path, mode: object, first: bool) -> None:
    write_pooling(tmp_path)
    config = {"embedding_dimension": 384, "pooling_mode": mode, "include_prompt": True}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(config))
    assert read_embeddings(tmp_path) == Embeddings(Pooling(first, normalize=True))


def test_the_longest_text(tmp_path: Path) -> None:
    write_pooling(tmp_path)
    settings = tmp_path / "sentence_bert_config.json"
    settings.write_text(json.dumps({"max_seq_length": 256, "do_lower_case": False}))
    assert read_embeddings(tmp_path).max_seq_length == 256
    settings.write_text(json.dumps({"max_seq_length": None}))
    assert read_embeddings(tmp_path).max_seq_length is None
    settings.write_text(json.dumps({"max_seq_length": -1, "do_lower_case": True}))
    with pytest.raises(ConvertError, match=r"(?s)do_lower_case: expected False.*max_seq_length: expected an integer"):
        read_embeddings(tmp_path)


@pytest.mark.parametrize(
    ("modes", "asked"),
    [
        ({"pooling_mode_max_tokens": True}, "mean, pooling_mode_max_tokens"),
        ({"pooling_mode_mean_tokens": False}, "nothing"),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}, "pooling_mode_lasttoken"),
        ({"pooling_mode_cls_token": True}, "cls, mean"),
        ({"pooling_mode_mean_tokens": "yes"}, "pooling_mode_mean_tokens"),
        ({"pooling_mode_mean_tokens": False, "pooling_mode": "max"}, "max"),
        ({"pooling_mode_mean_tokens": False, "pooling_mode": ["mean", "cls"]}, "mean, cls"),
        ({"pooling_mode_mean_tokens": False, "pooling_mode": [["mean"]]}, r".*"),
    ],
)
def test_other_poolings_are_refused(tmp_path: Path, modes: dict[str, bool], asked: str) -> None:
    write_pooling(tmp_path, **modes)
    with pytest.raises(ConvertError, match=f"asks for ['\"]{asked}['\"]: expected mean or cls"):
        read_embeddings(tmp_path)


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ({}, "to be a list of modules"),
        (["Transformer"], "to be a list of modules"),
        ([{"type": "sentence_transformers.models.CLIPModel"}], "has the modules 'CLIPModel'"),
        ([{"type": "x.Transformer"}, {"type": "x.Pooling"}, {"type": "x.Dense"}], "'Transformer, Pooling, Dense'"),
        ([{"type": "Transformer"}, {"type": "Pooling", "path": "../elsewhere"}], "the name of a folder"),
        ([{"type": "Transformer"}, {"type": "Pooling"}], "has a pooling at None"),
    ],
)
def test_other_modules_are_refused(tmp_path: Path, modules: Any, message: str) -> None:
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ConvertError, match=message):
        read_embeddings(tmp_path)


def test_damaged_files_are_clear_errors(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("[")
    with pytest.raises(ConvertError, match="to be JSON"):
        read_embeddings(tmp_path)
    write_pooling(tmp_path)
    (tmp_path / "1_Pooling" / "config.json").unlink()
    with pytest.raises(ConvertError, match=r"config\.json"):
        read_embeddings(tmp_path)
