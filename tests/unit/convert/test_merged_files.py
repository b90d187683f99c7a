"""vocab.json with merges.txt becomes the tokenizer that transformers makes of it, by its class."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Qwen3_5Tokenizer

from tests.nasty_texts import nasty_texts
from trtllm_lite.convert.tokenizers.files import read_tokenizer
from trtllm_lite.errors import ConvertError

_COHERE = ["<PAD>", "<UNK>", "<CLS>", "<SEP>", "<MASK_TOKEN>", "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"]
# Special tokens at the start of the vocabulary of each class, and the model_type whose tokenizer it is.
_CLASSES = {
    "GPT2Tokenizer": (["<|endoftext|>"], "gpt2"),
    "GPTNeoXTokenizer": (["<|endoftext|>", "<|padding|>"], "gpt_neox"),
    "CohereTokenizer": (_COHERE, "cohere"),
    "Qwen2Tokenizer": (["<|endoftext|>"], "qwen2"),
    "Qwen3_5Tokenizer": (["<|endoftext|>"], "qwen3_5"),
    "RobertaTokenizer": (["<s>", "<pad>", "</s>", "<unk>", "<mask>"], "roberta"),
}


@cache
def _trained() -> tuple[list[str], list[list[str]]]:
    """Tokens and merges of a byte-level BPE, trained on this project's sources."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1500, initial_alphabet=alphabet, show_progress=False)
    texts = [path.read_text() for path in sorted(Path(__file__).parent.glob("test_t*.py"))]
    trained.train_from_iterator([*texts, *nasty_texts(11)], trainer)
    model = json.loads(trained.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), model["merges"]


def _write(path: Path, special: list[str], settings: dict[str, Any], **others: Any) -> None:
    tokens, merges = _trained()
    vocab = {token: number for number, token in enumerate([*special, *tokens])}
    (path / "vocab.json").write_text(json.dumps(vocab))
    (path / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in merges))
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    for name, content in others.items():
        (path / f"{name}.json").write_text(json.dumps(content))


def _reference(path: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of transformers, whose class for Qwen3.5 does not read the files by itself."""
    if json.loads((path / "tokenizer_config.json").read_text())["tokenizer_class"] != "Qwen3_5Tokenizer":
        return AutoTokenizer.from_pretrained(path)
    merges = [tuple(line.split()) for line in (path / "merges.txt").read_text().split("\n")[1:] if line]
    return Qwen3_5Tokenizer(vocab=json.loads((path / "vocab.json").read_text()), merges=merges)


def _expect_equal(path: Path, texts: list[str]) -> tuple[Tokenizer, PreTrainedTokenizerBase]:
    theirs = _reference(path)
    text, strings = read_tokenizer(path)
    ours = Tokenizer.from_str(str(text))
    for sample in texts:
        for adds in (True, False):
            ids = theirs(sample, add_special_tokens=adds).input_ids
            assert ours.encode(sample, add_special_tokens=adds).ids == ids, sample
        for skips in (True, False):
            assert ours.decode(ids, skip_special_tokens=skips) == theirs.decode(ids, skip_special_tokens=skips), sample
    for role in ("bos_token", "eos_token", "unk_token", "pad_token", "mask_token"):
        assert strings.get(role) == getattr(theirs, role, None), role
    return ours, theirs


@pytest.mark.parametrize("name", _CLASSES)
def test_ids_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    special, model_type = _CLASSES[name]
    _write(tmp_path, special, {"tokenizer_class": name}, config={"model_type": model_type})
    chats = [f" {token}  a{token}\u0338 {token}" for token in special]
    ours, theirs = _expect_equal(tmp_path, [*nasty_texts(12), *chats])
    if name == "RobertaTokenizer":
        assert ours.encode("a b", "c").ids == theirs("a b", "c").input_ids


@pytest.mark.parametrize("name", ["GPT2TokenizerFast", "Qwen2TokenizerFast"])
def test_added_tokens_and_flags_count(name: str, tmp_path: Path) -> None:
    numbers = {1501: "<|im_start|>", 1502: "<|im_end|>", 1503: "<tool_call>"}
    added = {
        str(number): {"content": text, "special": text.startswith("<|"), "normalized": False}
        for number, text in numbers.items()
    }
    settings = {"tokenizer_class": name, "added_tokens_decoder": added, "eos_token": "<|im_end|>", "bos_token": None}
    settings["additional_special_tokens"] = ["<|im_start|>", "<|im_end|>"]
    _write(tmp_path, ["<|endoftext|>"], settings, config={"model_type": "gpt2"})
    chats = ["<|im_start|>user\n hi<|im_end|>\n<tool_call>{}<|endoftext|>", " <|im_end|> <|im_start|>\u0301"]
    _expect_equal(tmp_path, [*nasty_texts(13, 100), *chats])


def test_tokens_of_added_tokens_json_count(tmp_path: Path) -> None:
    settings = {"tokenizer_class": "Qwen2Tokenizer", "additional_special_tokens": ["<|im_end|>"]}
    others = {"added_tokens": {"<|im_end|>": 1501, "<tool>": 1502}, "config": {"model_type": "qwen2"}}
    _write(tmp_path, ["<|endoftext|>"], settings, **others)
    _expect_equal(tmp_path, [*nasty_texts(14, 100), "a<|im_end|> <tool>b<|endoftext|>"])


@pytest.mark.parametrize("kind", [None, "BartTokenizer", ["Qwen2Tokenizer"]])
def test_a_class_that_is_not_known_is_refused(kind: Any, tmp_path: Path) -> None:
    _write(tmp_path, [], {"tokenizer_class": kind})
    with pytest.raises(ConvertError) as caught:
        read_tokenizer(tmp_path)
    message = str(caught.value)
    assert "has its tokenizer in vocab.json and merges.txt alone, which do not say how texts are cut" in message
    assert "expected one of GPT2Tokenizer, GPTNeoXTokenizer, CohereTokenizer, Qwen2Tokenizer, " in message


@pytest.mark.parametrize(
    ("file", "content"),
    [("vocab.json", b"[]"), ("vocab.json", b"\xff"), ("merges.txt", b"a b c\n"), ("merges.txt", b"a zzz\n")],
)
def test_a_damaged_file_is_an_error(file: str, content: bytes, tmp_path: Path) -> None:
    _write(tmp_path, ["<|endoftext|>"], {"tokenizer_class": "GPT2Tokenizer"})
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ConvertError, match=r"vocab.json is not a tokenizer"):
        read_tokenizer(tmp_path)
