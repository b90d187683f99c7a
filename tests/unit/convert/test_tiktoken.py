"""Rank files of tiktoken become tokenizers that give the ids and texts of tiktoken itself."""

import base64
import json
import random
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers.convert_slow_tokenizer import TikTokenConverter, bytes_to_unicode

from tests.nasty_texts import nasty_texts
from trtllm_lite.convert.tokenizers.files import read_tokenizer
from trtllm_lite.errors import ConvertError

# Facts of tokenization_kimi.py (moonshotai/Kimi-K2-Instruct) and tokenization_qwen.py (Qwen/Qwen-7B).
_KIMI_PATTERN = "|".join(
    [
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
_QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN = {"tokenizer_class": "QWenTokenizer", "auto_map": {"AutoTokenizer": ["tokenization_qwen.QWenTokenizer", None]}}
_QWEN_SPECIAL = {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645}
_QWEN_SPECIAL |= {f"<|extra_{number}|>": 151646 + number for number in range(205)}
_FLAGS = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}


@cache
def _ranks() -> dict[bytes, int]:
    """The single bytes in GPT-2's order, then tokens trained on this project's sources, in the order of training."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1500, initial_alphabet=alphabet, show_progress=False)
    texts = [path.read_text() for path in sorted(Path(__file__).parent.glob("test_t*.py"))]
    trained.train_from_iterator([*texts, *nasty_texts(1)], trainer)
    byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
    words = sorted(trained.get_vocab(), key=trained.get_vocab().get)
    return {bytes(byte_of[character] for character in word): rank for rank, word in enumerate(words)}


def _kimi(first: int, class_name: str = "tokenization_kimi.TikTokenTokenizer") -> dict[str, Any]:
    """The content of tokenizer_config.json, with special tokens from the number ``first`` on."""
    named = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 17: "<|tool_call_begin|>", 254: "[UNK]", 255: "[PAD]"}
    added = {
        str(first + place): {"content": text, "special": not text.startswith("<|tool"), **_FLAGS}
        for place, text in named.items()
    }
    roles = {"bos_token": "[BOS]", "eos_token": "[EOS]", "unk_token": "[UNK]", "pad_token": "[PAD]"}
    classes = {"tokenizer_class": "TikTokenTokenizer", "auto_map": {"AutoTokenizer": [class_name, None]}}
    return {**classes, **roles, "added_tokens_decoder": added, "clean_up_tokenization_spaces": False}


def _write(path: Path, name: str, ranks: dict[bytes, int], settings: dict[str, Any]) -> None:
    lines = [base64.b64encode(token) + f" {rank}\n".encode() for token, rank in ranks.items()]
    (path / name).write_bytes(b"".join(lines))
    (path / "tokenizer_config.json").write_text(json.dumps(settings))


def _read(path: Path) -> Tokenizer:
    return Tokenizer.from_str(str(read_tokenizer(path)[0]))


def _expect_equal(ours: Tokenizer, theirs: tiktoken.Encoding, texts: list[str]) -> None:
    for text in texts:
        ids = theirs.encode(text, allowed_special="all")
        assert ours.encode(text).ids == ids, text
        assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids), text


def _expect_texts_of_tokens(ours: Tokenizer, theirs: tiktoken.Encoding, count: int) -> None:
    choose = random.Random(5)
    for token in range(count):
        assert ours.decode([token]) == theirs.decode([token])  # lone bytes become U+FFFD
    for _ in range(500):
        ids = choose.choices(range(300), k=choose.randrange(12))
        assert ours.decode(ids) == theirs.decode(ids)


@pytest.mark.parametrize("module", ["tokenization_kimi", "moonshotai/Moonlight-16B-A3B--tokenization_moonshot"])
def test_kimi_gives_the_ids_of_tiktoken(module: str, tmp_path: Path) -> None:
    ranks = _ranks()
    settings = _kimi(len(ranks), f"{module}.TikTokenTokenizer")
    _write(tmp_path, "tiktoken.model", ranks, settings)
    text, strings = read_tokenizer(tmp_path)
    ours = Tokenizer.from_str(str(text))
    names = {int(number): token["content"] for number, token in settings["added_tokens_decoder"].items()}
    numbers = range(len(ranks), len(ranks) + 256)
    special = {names.get(number, f"<|reserved_token_{number}|>"): number for number in numbers}
    theirs = tiktoken.Encoding("kimi", pat_str=_KIMI_PATTERN, mergeable_ranks=ranks, special_tokens=special)
    reserved = f" <|reserved_token_{len(ranks) + 40}|>x"
    chats = ["<|im_end|>[BOS] a<|tool_call_begin|>b[EOS]", reserved, "[PAD][UNK", "[BOS"]
    _expect_equal(ours, theirs, [*nasty_texts(2), *chats])
    _expect_texts_of_tokens(ours, theirs, len(ranks))
    assert ours.get_vocab_size() == theirs.n_vocab == len(ranks) + 256
    assert strings["eos_token"] == "[EOS]"
    ids = [special["<|tool_call_begin|>"], special["[EOS]"]]
    assert ours.decode(ids, skip_special_tokens=True) == "<|tool_call_begin|>"


def test_qwen_gives_the_ids_of_tiktoken(tmp_path: Path) -> None:
    ranks = _ranks()
    _write(tmp_path, "qwen.tiktoken", ranks, _QWEN)
    ours = _read(tmp_path)
    theirs = tiktoken.Encoding("qwen", pat_str=_QWEN_PATTERN, mergeable_ranks=ranks, special_tokens=_QWEN_SPECIAL)
    chats = ["<|im_start|>user\nHi<|im_end|>\n", "<|extra_204|><|extra_205|>", "a<|endoftext|>", "<|im_end|>\u0338"]
    for text in [*nasty_texts(3), *chats]:
        # The class composes characters before it looks for special tokens.
        ids = theirs.encode(unicodedata.normalize("NFC", text), allowed_special="all")
        assert ours.encode(text).ids == ids, text
    _expect_texts_of_tokens(ours, theirs, len(ranks))
    assert {text: number for text, number in ours.get_vocab().items() if number >= 151643} == _QWEN_SPECIAL


def test_merges_equal_those_of_transformers_in_effect(tmp_path: Path) -> None:
    """The reference orders the ways to make one token otherwise."""
    _write(tmp_path, "qwen.tiktoken", _ranks(), _QWEN)
    ours = _read(tmp_path)
    theirs = TikTokenConverter(str(tmp_path / "qwen.tiktoken"), pattern=_QWEN_PATTERN).converted()
    for text in nasty_texts(4):
        assert ours.encode(text).ids == theirs.encode(unicodedata.normalize("NFC", text)).ids, text


@pytest.mark.parametrize("seed", range(3))
def test_ranks_in_any_order_of_lines_and_with_gaps(seed: int, tmp_path: Path) -> None:
    choose = random.Random(seed)
    letters = b"ab " if seed else b"abcd"
    words = sorted({bytes(choose.choices(letters, k=choose.randrange(2, 7))) for _ in range(120)})
    tokens = choose.sample([*(bytes([byte]) for byte in range(256)), *words], 256 + len(words))
    ranks = {token: 3 * rank for rank, token in enumerate(tokens)}
    shuffled = dict(choose.sample(sorted(ranks.items()), len(ranks)))
    _write(tmp_path, "tiktoken.model", shuffled, {"auto_map": {"AutoTokenizer": "tokenization_kimi.TikTokenTokenizer"}})
    theirs = tiktoken.Encoding("x", pat_str=_KIMI_PATTERN, mergeable_ranks=ranks, special_tokens={})
    ours = _read(tmp_path)
    for _ in range(500):
        text = bytes(choose.choices(letters, k=choose.randrange(40))).decode()
        assert ours.encode(text).ids == theirs.encode(text), text


@pytest.mark.parametrize(
    ("name", "settings", "found"),
    [
        ("tiktoken.model", {}, "the class None in"),
        ("tiktoken.model", {"tokenizer_class": "TikTokenTokenizer"}, "the class 'TikTokenTokenizer' in"),
        ("hy.tiktoken", {"auto_map": {"AutoTokenizer": ["tokenization_hy.HYTokenizer", None]}}, "'tokenization_hy.HYT"),
        ("other.tiktoken", _QWEN, "'tokenization_qwen.QWenTokenizer'"),
    ],
)
def test_a_class_that_is_not_known_is_refused(name: str, settings: Any, found: str, tmp_path: Path) -> None:
    _write(tmp_path, name, _ranks(), settings)
    with pytest.raises(ConvertError) as caught:
        read_tokenizer(tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path} has its tokenizer in {name} alone, which does not say how texts are cut")
    assert found in message
    assert "expected one of tokenization_kimi.TikTokenTokenizer (for tiktoken.model), " in message
    assert "tokenization_qwen.QWenTokenizer (for qwen.tiktoken): create tokenizer.json with `AutoTokenizer" in message


_LINE = base64.b64encode(b"xyz").decode()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (_LINE, "expected line 1501 of .* to be a token in base64 and its rank, found"),
        (f"{_LINE} 12 13", "expected line 1501"),
        (f"{_LINE} one", "expected line 1501"),
        ("?? 3000", "expected line 1501"),
        (f"{_LINE} 12", "two tokens with the same text or number"),
        (f"{_LINE} -1", "to be different, with ranks from 0 on"),
        (f"YQ== {9999}", "to be different"),
        (f"{_LINE} 151643", "two tokens with the same text or number"),
        (f"{_LINE} {1 << 40}", "is not a tokenizer"),
        (f"{_LINE} {1 << 30}", "has the token id 1073741824, expected ids below 16777216"),
        (f"{base64.b64encode(b'<|im_end|>').decode()} 3000", "two tokens with the same text or number"),
        (f"{base64.b64encode(b'x' * 2000).decode()} 3000", "a token of 2000 characters, expected at most 1024"),
        ("\n", None),
    ],
)
def test_a_damaged_file_is_an_error(line: str, message: str | None, tmp_path: Path) -> None:
    _write(tmp_path, "qwen.tiktoken", _ranks(), _QWEN)
    with (tmp_path / "qwen.tiktoken").open("a") as file:
        file.write(line)
    if message is None:
        assert read_tokenizer(tmp_path)[0]
        return
    with pytest.raises(ConvertError, match=message):
        read_tokenizer(tmp_path)


def test_every_byte_is_a_token(tmp_path: Path) -> None:
    _write(tmp_path, "qwen.tiktoken", {token: rank for token, rank in _ranks().items() if token != b"q"}, _QWEN)
    with pytest.raises(ConvertError, match="to have every single byte as a token, found 255 of 256"):
        read_tokenizer(tmp_path)
