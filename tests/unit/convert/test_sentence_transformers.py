"""The files of sentence-transformers: which settings of an encoder are read, and which are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.encoders import write_pooling
from tests.models import save_tiny_model
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.convert.metadata.ignored import IgnoredKeys
from trtllm_lite.convert.sources import sentence_transformers
from trtllm_lite.convert.sources.source import Embeddings
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


@pytest.mark.parametrize("name", ["sentence_bert_config", "sentence_roberta_config", "sentence_xlm-roberta_config"])
def test_every_name_of_the_file_counts(tmp_path: Path, name: str) -> None:
    write_pooling(tmp_path)
    (tmp_path / f"{name}.json").write_text(json.dumps({"max_seq_length": 77}))
    assert read_embeddings(tmp_path).max_seq_length == 77


@pytest.mark.parametrize(
    ("said", "prompt"),
    [
        ({"prompts": {"query": "query: ", "document": ""}, "default_prompt_name": "query"}, "query: "),
        ({"prompts": {"query": "query: ", "document": ""}, "default_prompt_name": "document"}, ""),
        ({"prompts": {"query": "query: "}, "default_prompt_name": None, "similarity_fn_name": "cosine"}, ""),
        ({"__version__": {"sentence_transformers": "5.1.0"}, "model_type": "SentenceTransformer"}, ""),
    ],
)
def test_the_default_prompt(tmp_path: Path, said: dict[str, Any], prompt: str) -> None:
    write_pooling(tmp_path)
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(said))
    assert read_embeddings(tmp_path).prompt == prompt


@pytest.mark.parametrize(
    ("file", "said", "message"),
    [
        ("config_sentence_transformers", {"default_prompt_name": "q", "prompts": {"d": "x"}}, "no prompt of .* 'q'"),
        ("config_sentence_transformers", {"default_prompt_name": "q", "prompts": {"q": 5}}, "no prompt of .* 'q'"),
        (
            "config_sentence_transformers",
            {"model_type": "SparseEncoder"},
            "model_type: 'SparseEncoder' is not supported",
        ),
        ("config_sentence_transformers", {"truncate_dim": 64}, "truncate_dim: 64 is not mapped"),
        ("sentence_bert_config", {"model_args": {"x": 1}}, r"model_args: .* is not mapped"),
        ("sentence_bert_config", {"transformer_task": "fill-mask"}, "transformer_task: 'fill-mask' is not supported"),
    ],
)
def test_other_settings_are_refused(tmp_path: Path, file: str, said: dict[str, Any], message: str) -> None:
    write_pooling(tmp_path)
    (tmp_path / f"{file}.json").write_text(json.dumps(said))
    with pytest.raises(ConvertError, match=message):
        read_embeddings(tmp_path)
    first = next(iter(said))
    assert read_embeddings(tmp_path, f"{file}.{first}") == Embeddings(Pooling(normalize=True))


def test_a_prompt_that_the_pooling_leaves_out_is_refused(tmp_path: Path) -> None:
    write_pooling(tmp_path, include_prompt=False)
    assert read_embeddings(tmp_path).prompt == ""
    said = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(said))
    with pytest.raises(
        ConvertError, match=r"'query: ' before every text, .*_sentence_transformers\.default_prompt_name"
    ):
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
        ([{"type": "Transformer", "path": "0_T"}, {"type": "Pooling", "path": "1"}], "has the transformer at '0_T'"),
        (
            [{"type": "Transformer", "kwargs": ["task"]}, {"type": "Pooling"}],
            r"modules\.kwargs: \['task'\] is not mapped",
        ),
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


def test_a_decoder_that_embeds_is_refused(tmp_path: Path) -> None:
    save_tiny_model("qwen3", tmp_path / "model")
    write_pooling(tmp_path / "model")
    with pytest.raises(ConvertError, match=r"embeds texts, as its modules\.json says, and is a decoder \(qwen3\)"):
        convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    (tmp_path / "model" / "modules.json").unlink()
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
