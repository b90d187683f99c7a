"""Settings beside tokenizer.json have the effect that they have in transformers, or are an error that names them."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from tests.published_tokenizers import PUBLISHED
from trtllm_lite.convert.metadata.ignored import IgnoredKeys
from trtllm_lite.convert.tokenizers.files import read_tokenizer
from trtllm_lite.errors import ConvertError, EngineError
from trtllm_lite.workflows.wanted_engine import open_tokenizer

_MODELS = {model.name.rpartition("/")[2]: model for model in PUBLISHED}
_GPT2, _LLAMA3, _BERT = "gpt2", "Llama-3.1-8B-Instruct", "bert-base-cased"
_TEXTS = (
    "the fox",
    " the  fox",
    "The <new> fox",
    "the  <new>  fox <b>a",
    "",
    "a<|eot_id|>the quick",
    "the brown",
    "Ünder",
)


def _write(name: str, directory: Path, files: dict[str, dict[str, Any]]) -> None:
    """Write the files of a published model, with the keys of ``files`` added."""
    _MODELS[name].write(directory)
    for file, changes in files.items():
        path = directory / file
        content = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**content, **changes}))


def _next_id(directory: Path) -> int:
    return Tokenizer.from_file(str(directory / "tokenizer.json")).get_vocab_size()


@pytest.mark.parametrize(
    ("name", "files"),
    [
        (_GPT2, {"added_tokens.json": {"<new>": 0}}),
        (
            _GPT2,
            {"special_tokens_map.json": {"additional_special_tokens": ["<new>", "<b>"]}},
        ),
        (_GPT2, {"special_tokens_map.json": {"eos_token": "<new>"}, "tokenizer_config.json": {"eos_token": "<b>"}}),
        (_GPT2, {"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}}),
        ("roberta-base", {"tokenizer_config.json": {"add_prefix_space": True}}),
        ("pythia-1b", {"tokenizer_config.json": {"add_prefix_space": True}}),
        ("bge-m3", {"tokenizer_config.json": {"add_prefix_space": False}}),
        (_LLAMA3, {"tokenizer_config.json": {"extra_special_tokens": ["<new>"]}}),
        (_LLAMA3, {"tokenizer_config.json": {"extra_special_tokens": {"image_token": "<new>"}}}),
        (_LLAMA3, {"tokenizer_config.json": {"additional_special_tokens": ["<new>", "<b>"]}}),
        (_LLAMA3, {"tokenizer_config.json": {"image_token": "<new>", "pad_token": "<b>"}}),
        (_LLAMA3, {"special_tokens_map.json": {"pad_token": "<new>"}}),
        (_LLAMA3, {"tokenizer_config.json": {"pad_token": "the"}}),
        (_BERT, {"tokenizer_config.json": {"do_lower_case": True}}),
        (_BERT, {"tokenizer_config.json": {"strip_accents": True, "tokenize_chinese_chars": False}}),
    ],
)
def test_ids_change_as_in_transformers(name: str, files: dict[str, Any], tmp_path: Path) -> None:
    _write(name, tmp_path, files)
    if "added_tokens.json" in files:
        (tmp_path / "added_tokens.json").write_text(json.dumps({"<new>": _next_id(tmp_path)}))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    text, settings = read_tokenizer(tmp_path)
    ours = Tokenizer.from_str(str(text))
    for sample in _TEXTS:
        assert ours.encode(sample).ids == theirs(sample).input_ids, sample
    assert {role: settings.get(role) for role in ("eos_token", "pad_token")} == {
        role: getattr(theirs, role) or None for role in ("eos_token", "pad_token")
    } or name in (_GPT2, "roberta-base", "pythia-1b", "bge-m3")


@pytest.mark.parametrize("flags", [{"lstrip": True}, {"rstrip": True}, {"single_word": True}, {"normalized": True}])
@pytest.mark.parametrize("place", ["beyond", "known"])
def test_declared_tokens_count_before_those_of_tokenizer_json(
    place: str, flags: dict[str, bool], tmp_path: Path
) -> None:
    _write(_LLAMA3, tmp_path, {})
    path = tmp_path / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    text, number = ("<new>", _next_id(tmp_path)) if place == "beyond" else ("<|eot_id|>", _next_id(tmp_path) - 2)
    settings["added_tokens_decoder"][str(number)] = {"content": text, "special": True, **flags}
    path.write_text(json.dumps(settings))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer.from_str(str(read_tokenizer(tmp_path)[0]))
    assert ours.token_to_id(text) == number
    for sample in (*_TEXTS, f"the {text} fox{text}"):
        assert ours.encode(sample).ids == theirs(sample).input_ids, sample


def test_a_space_before_texts_of_sentencepiece(tmp_path: Path) -> None:
    """Yi's tokenizer.json adds no space, and its tokenizer_config.json asks for one; the second case is the reverse."""
    (tmp_path / "with").mkdir()
    (tmp_path / "without").mkdir()
    off, on = {"add_prefix_space": False, "legacy": True}, {"add_prefix_space": True, "legacy": True}
    _write("Mistral-7B-Instruct-v0.2", tmp_path / "without", {"tokenizer_config.json": off})
    _write("gemma-2-2b-it", tmp_path / "with", {"tokenizer_config.json": on})
    spaced, bare = (Tokenizer.from_str(str(read_tokenizer(tmp_path / name)[0])) for name in ("with", "without"))
    assert spaced.encode("the fox").tokens == ["<bos>", *bare.encode(" the fox").tokens[1:]]
    assert spaced.decode(spaced.encode("the fox").ids) == "the fox"
    assert bare.decode(bare.encode(" the fox").ids) == " the fox"


@pytest.mark.parametrize("wanted", [(True, True), (False, True), (True, False), (False, False)])
@pytest.mark.parametrize("name", [_LLAMA3, "DeepSeek-V3", "bert-base-cased"])
def test_declared_ends_count(name: str, wanted: tuple[bool, bool], tmp_path: Path) -> None:
    ends = {"bos_token": "[CLS]", "eos_token": "[SEP]"} if name == "bert-base-cased" else {}
    flags = dict(zip(("add_bos_token", "add_eos_token"), wanted, strict=True))
    _write(name, tmp_path, {"tokenizer_config.json": {**ends, **flags}})
    text, settings = read_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_str(str(text))
    bos, eos = (tokenizer.token_to_id(settings[role]) for role in ("bos_token", "eos_token"))
    plain = tokenizer.encode("the fox", add_special_tokens=False).ids
    assert tokenizer.encode("the fox").ids == [*[bos] * wanted[0], *plain, *[eos] * wanted[1]]


def test_nothing_changes_without_a_reason(tmp_path: Path) -> None:
    """tokenizer.json is copied unchanged where the other files agree with it."""
    _write("Qwen2.5-7B-Instruct", tmp_path, {})
    assert read_tokenizer(tmp_path)[0] == (tmp_path / "tokenizer.json").read_text()


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        (
            "tokenizer_config.json",
            {"flavour": 1},
            r"tokenizer_config\.flavour: 1 is not mapped .*_keys tokenizer_config.f",
        ),
        (
            "tokenizer_config.json",
            {"split_special_tokens": True},
            r"split_special_tokens: True is not supported; .*pass",
        ),
        (
            "tokenizer_config.json",
            {"sp_model_kwargs": {"enable_sampling": True}},
            "sp_model_kwargs: .* is not supported",
        ),
        ("tokenizer_config.json", {"add_sep_token": True}, r"tokenizer_config\.add_sep_token: True is not mapped"),
        ("tokenizer_config.json", {"add_prefix_space": "yes"}, "add_prefix_space of .* is 'yes': expected true or"),
        ("tokenizer_config.json", {"add_bos_token": 1}, "add_bos_token of .* is 1: expected true or false"),
        ("tokenizer_config.json", {"add_prefix_space": True}, "add_prefix_space is set, and nothing in tokenizer.json"),
        ("tokenizer_config.json", {"do_lower_case": True}, "do_lower_case is set, and nothing in tokenizer.json does"),
        ("tokenizer_config.json", {"eos_token": 5}, "expected the special tokens of .* to be texts or objects"),
        ("tokenizer_config.json", {"extra_special_tokens": [7]}, "expected the special tokens of .* to be texts or"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"0": {"content": "<x>"}}}, "number 0 to a tokenizer where"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"1": "<x>"}}, "added tokens of .* to be objects by id"),
        ("special_tokens_map.json", {"flavour": [1]}, r"special_tokens_map\.flavour: \[1\] is not mapped"),
        ("added_tokens.json", {"<x>": "7"}, "added tokens of .* to be numbers by their texts"),
        ("added_tokens.json", {"<x>": 9999}, r"'<x>' as number 9999 .* is not its number, .*_keys added_tokens\.<x> "),
    ],
)
def test_what_cannot_be_followed_is_an_error(file: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    _write("Qwen3-8B", tmp_path, {})
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    del settings["added_tokens_decoder"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    path = tmp_path / file
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **changes}))
    with pytest.raises(ConvertError, match=message):
        read_tokenizer(tmp_path)
    ignored = IgnoredKeys([f"{path.stem}.{key}" for key in changes])
    assert read_tokenizer(tmp_path, ignored)[0] == (tmp_path / "tokenizer.json").read_text()
    ignored.check("the model")


def test_a_tokenizer_that_is_given_in_place_of_an_engines_own_counts_as_converted(tmp_path: Path) -> None:
    _write("DeepSeek-V3", tmp_path, {"tokenizer_config.json": {"extra_special_tokens": ["<new>"]}})
    given = open_tokenizer(tmp_path)
    converted = Tokenizer.from_str(str(read_tokenizer(tmp_path)[0]))
    assert given.encode("the <new> fox") == converted.encode("the <new> fox").ids
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(EngineError, match=r"holds no tokenizer\.json: pass a directory that does"):
        open_tokenizer(tmp_path)
