"""tekken.json becomes a tokenizer that gives the ids and texts of tiktoken, which mistral-common uses for the file."""

import base64
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.integrations.mistral.tokenizer import MistralConverter

from tests.nasty_texts import nasty_texts
from trtllm_lite.convert.metadata.ignored import IgnoredKeys
from trtllm_lite.convert.tokenizers.files import read_tokenizer
from trtllm_lite.errors import ConvertError

_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_PATTERN = (  # the pattern of all files that Mistral has published
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_NAMES = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[THINK]", "<pad>")
_LISTED = [{"rank": rank, "token_str": name, "is_control": name != "[THINK]"} for rank, name in enumerate(_NAMES)]
_SPECIAL, _KEPT = 24, 1800
_TEXTS = (
    *(
        "",
        " ",
        "Hello,  world!",
        "it's 1234567 o'CLOCK 3.14 ½",
        "a\r\n\n\n  b\t \n",
        "def f(x):\n        return x**2 // 3\n",
    ),
    *(
        "naïve café e\u0301 Ångström ΣΑΣ ſ",
        "你好，世界 안녕 ไทย مرحبا",
        "🙂👍🏽👨‍👩‍👧 \u00a0\u200b\u3000",
        "\x00\x7f" + "=" * 70 + " " * 70,
    ),
)


@cache
def _tokens() -> list[bytes]:
    """The single bytes, then tokens trained on this project's sources, in the order of training."""
    trained = Tokenizer(models.BPE())
    cuts = [pre_tokenizers.Split(Regex(_PATTERN), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    trained.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    trainer = trainers.BpeTrainer(vocab_size=2000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    texts = [path.read_text() for path in sorted(Path(__file__).parent.glob("*.py"))]
    trained.train_from_iterator([*texts, *(_TEXTS * 3)], trainer)
    byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
    found = [
        bytes(byte_of[c] for c in text) for text, _ in sorted(trained.get_vocab().items(), key=lambda pair: pair[1])
    ]
    return [*(bytes([byte]) for byte in range(256)), *(token for token in found if len(token) > 1)]


def _content(tokens: list[bytes], **config: Any) -> dict[str, Any]:
    """The content of a file of version 11."""
    settings = {"pattern": _PATTERN, "num_vocab_tokens": len(tokens), "default_vocab_size": _SPECIAL + _KEPT}
    settings |= {"default_num_special_tokens": _SPECIAL, "version": "v11", **config}
    entries = [
        {"rank": n, "token_bytes": base64.b64encode(t).decode(), "token_str": None} for n, t in enumerate(tokens)
    ]
    return {"config": settings, "vocab": entries, "special_tokens": _LISTED}


def _write(path: Path, content: dict[str, Any]) -> None:
    (path / "tekken.json").write_text(json.dumps(content))


def _read(path: Path) -> Tokenizer:
    return Tokenizer.from_str(str(read_tokenizer(path)[0]))


def _reference(tokens: list[bytes], pattern: str = _PATTERN) -> tiktoken.Encoding:
    ranks = {token: rank for rank, token in enumerate(tokens)}
    return tiktoken.Encoding("tekken", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


def _expect_equal(ours: Tokenizer, theirs: tiktoken.Encoding, text: str) -> None:
    ids = [number + _SPECIAL for number in theirs.encode_ordinary(text)]
    assert ours.encode(text, add_special_tokens=False).ids == ids, text
    assert ours.decode(ids) == text


@pytest.mark.parametrize("version", ["v3", "v7", "v11", "v13"])
def test_ids_and_texts_are_those_of_tiktoken(version: str, tmp_path: Path) -> None:
    content = _content(_tokens(), version=version)
    if version == "v3":
        del content["special_tokens"]
        content |= {"multimodal": {"image_patch_size": 16, "max_image_size": 1024}}
    if version == "v13":
        content |= {"image": {"image_patch_size": 14}, "audio": {"sampling_rate": 16000}, "type": "Tekken"}
    _write(tmp_path, content)
    ours, theirs = _read(tmp_path), _reference(_tokens()[:_KEPT])
    assert ours.get_vocab_size() == _SPECIAL + _KEPT
    choose = random.Random(version)
    letters = ["a", "B", " ", "  ", "\n", "\r", "the", "0", "_", "é", "e\u0301", "你", "🙂", "aaa", "'s", "=", "/"]
    mixed = ["".join(choose.choices(letters, k=choose.randrange(60))) for _ in range(300)]
    odd = ["".join(map(chr, choose.choices(range(0xD800), k=30))) for _ in range(200)]
    whole = [token.decode() for token in _tokens() if token.isascii()]
    for text in (*_TEXTS, *nasty_texts(31), *mixed, *odd, *whole, *(letter * 700 for letter in letters)):
        _expect_equal(ours, theirs, text)
    for number, token in enumerate(_tokens()[:_KEPT]):
        assert ours.decode([number + _SPECIAL]) == token.decode(errors="replace")


@pytest.mark.parametrize("version", ["v3", "v7", "v11", "v13"])
def test_ids_and_texts_are_those_of_mistral_common(version: str, tmp_path: Path) -> None:
    """The package reads the same file; it holds numpy back, so that the test extra does not have it."""
    name = "mistral_common.tokens.tokenizers.tekken"
    tekken = pytest.importorskip(name, reason="mistral_common is not installed")
    content = _content(_tokens(), version=version)
    if version == "v3":
        del content["special_tokens"]
    _write(tmp_path, content)
    ours, theirs = _read(tmp_path), tekken.Tekkenizer.from_file(tmp_path / "tekken.json")
    assert ours.get_vocab_size() == theirs.n_words
    for number in range(_SPECIAL):
        assert ours.id_to_token(number) == theirs.id_to_piece(number)
    for text in (*_TEXTS, *nasty_texts(47)):
        ids = theirs.encode(text, bos=False, eos=False)
        assert ours.encode(text, add_special_tokens=False).ids == ids, text
        assert ours.decode(ids) == theirs.decode(ids, tekken.SpecialTokenPolicy.IGNORE) == text
    assert ours.encode("a b").ids == theirs.encode("a b", bos=True, eos=False)


def test_special_tokens_are_those_of_transformers(tmp_path: Path) -> None:
    _write(tmp_path, _content(_tokens()))
    text, settings = read_tokenizer(tmp_path)
    ours, theirs = Tokenizer.from_str(str(text)), MistralConverter(str(tmp_path / "tekken.json")).converted()
    assert ours.get_vocab() == theirs.get_vocab()
    for sample in ("<s>[INST] a[/INST]b</s>", "x [THINK]y<SPECIAL_23>", " <pad> <unk>", "[INST"):
        ids = theirs.encode(sample).ids
        assert ours.encode(sample).ids == [1, *ids]
        for skips in (True, False):
            assert ours.decode(ids, skip_special_tokens=skips) == theirs.decode(ids, skip_special_tokens=skips)
    assert settings == {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def test_files_without_a_list_have_the_special_tokens_of_the_first_version(tmp_path: Path) -> None:
    content = _content(_tokens(), version="v3")
    del content["special_tokens"]
    _write(tmp_path, content)
    ours = _read(tmp_path)
    # Copied from mistral-common 1.13 (Tekkenizer.DEPRECATED_SPECIAL_TOKENS).
    expected = {3: "[INST]", 9: "[TOOL_CALLS]", 11: "<pad>", 17: "[SYSTEM_PROMPT]", 19: "[TOOL_CONTENT]"}
    assert {number: ours.id_to_token(number) for number in expected} == expected
    assert [ours.id_to_token(number) for number in (20, 23)] == ["<SPECIAL_20>", "<SPECIAL_23>"]


@pytest.mark.parametrize("seed", range(4))
def test_tokens_in_any_order_of_ranks(seed: int, tmp_path: Path) -> None:
    """Longer tokens have lower ranks here than their parts, and many tokens cannot be reached by joins."""
    choose = random.Random(seed)
    letters = b"ab " if seed % 2 else b"abcd"
    words = {bytes(choose.choices(letters, k=choose.randrange(2, 7))) for _ in range(120)}
    tokens = [*(bytes([byte]) for byte in range(256)), *choose.sample(sorted(words), len(words))]
    pattern = r"[^\n]+|\n"
    sizes = {"default_vocab_size": len(tokens) + _SPECIAL, "pattern": pattern}
    _write(tmp_path, _content(tokens, **sizes))
    ours, theirs = _read(tmp_path), _reference(tokens, pattern)
    for _ in range(1000):
        _expect_equal(ours, theirs, bytes(choose.choices(letters, k=choose.randrange(40))).decode())


@pytest.mark.parametrize(
    "pattern",
    [
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+",
    ],
)
def test_other_patterns_cut_as_in_tiktoken(pattern: str, tmp_path: Path) -> None:
    _write(tmp_path, _content(_tokens(), pattern=pattern))
    ours, theirs = _read(tmp_path), _reference(_tokens()[:_KEPT], pattern)
    for text in _TEXTS:
        _expect_equal(ours, theirs, text)


@pytest.mark.parametrize(
    "pattern", [r"\s++$|.+", r"\p{N}{1,3}+|.+", r"[\w--\d]+|.", r"[[:alpha:]]+|.", r"\h+|.", r"(?<!a)b"]
)
def test_patterns_that_libraries_read_otherwise_are_refused(pattern: str, tmp_path: Path) -> None:
    _write(tmp_path, _content(_tokens(), pattern=pattern))
    with pytest.raises(
        ConvertError, match=r"tekken\.json cuts texts by the pattern .* is not supported: put a tokenizer"
    ):
        read_tokenizer(tmp_path)


def test_the_files_beside_it_count(tmp_path: Path) -> None:
    _write(tmp_path, _content(_tokens()))
    plain = _read(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"another tokenizer, which does not count")
    added = {"24": {"content": "<new>", "special": True}}
    for settings, number in (({"add_bos_token": False}, 0), ({"add_eos_token": True}, 1), ({"bos_token": "[INST]"}, 2)):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        bare = plain.encode("a b", add_special_tokens=False).ids
        assert _read(tmp_path).encode("a b").ids == [bare, [1, *bare, 2], [3, *bare]][number]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    with pytest.raises(ConvertError, match=r"adds the token '<new>' as number 24"):
        read_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
    with pytest.raises(ConvertError, match="do_lower_case"):
        read_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "tokenizer.json").write_text(Tokenizer(models.BPE()).to_str())
    assert _read(tmp_path).get_vocab_size() == 0


def test_keys_that_are_not_known_may_be_ignored(tmp_path: Path) -> None:
    content = _content(_tokens(), version="v99")
    content["vocab"][300]["score"] = 1.5
    _write(tmp_path, content)
    with pytest.raises(
        ConvertError, match=r"tekken\.config\.version: 'v99' .*--ignore_config_keys tekken\.config\.ver"
    ):
        read_tokenizer(tmp_path)
    with pytest.raises(ConvertError, match=r"--ignore_config_keys tekken\.vocab\.score"):
        read_tokenizer(tmp_path, IgnoredKeys(["tekken.config.version"]))
    ignored = IgnoredKeys(["tekken.config.version", "tekken.vocab.score"])
    assert read_tokenizer(tmp_path, ignored)[0] is not None
    ignored.check("the model")  # all keys were present


_BAD: list[tuple[str, Any, str]] = [
    ("normalizer", "NFC", r"tekken\.normalizer: 'NFC' is not mapped"),
    ("config.lowercase", True, r"tekken\.config\.lowercase: True is not mapped"),
    ("vocab.300.score", 1.5, r"tekken\.vocab\.score: 1.5 is not mapped"),
    ("special_tokens.2.lstrip", True, r"tekken\.special_tokens\.lstrip"),
    ("vocab.300.rank", 299, "in the order of their ranks"),
    ("vocab.65.token_bytes", "", "the first 256 tokens .* to be the single bytes"),
    ("vocab.300.token_bytes", "$$", "is not a tokenizer"),
    (
        "vocab.300.token_bytes",
        base64.b64encode(b"b" * 2000).decode(),
        "a token of 2000 characters, expected at most 1024",
    ),
    ("vocab.300.token_bytes", base64.b64encode(b"<s>").decode(), "two tokens with the same text"),
    ("special_tokens.2.token_str", "<s>", "two tokens with the same text"),
    ("special_tokens.2.token_str", "", "none empty"),
    ("special_tokens.2.rank", 3, "to have the ranks from 0 on"),
    ("special_tokens", None, "expected special_tokens in .*tekken.json of version 'v11', found none"),
    ("config.default_num_special_tokens", 8, "has 9 special tokens, expected at most 8"),
    ("config.default_num_special_tokens", 1 << 30, "has 1073741824 special tokens, expected at most 65536"),
    ("config.default_vocab_size", 10**6, "its config keeps 999976, expected 256 or more, and not more than there are"),
    ("config.default_vocab_size", 100, "its config keeps 76, expected 256"),
    ("config.default_vocab_size", "9", r"expected tekken\.config\.default_vocab_size .* a whole number, found '9'"),
    ("config", None, "is not a tokenizer"),
    ("vocab", {}, r"has 0 tokens"),
]


@pytest.mark.parametrize(("place", "value", "message"), _BAD, ids=lambda value: str(value)[:40])
def test_a_file_that_cannot_be_read_exactly_is_an_error(place: str, value: Any, message: str, tmp_path: Path) -> None:
    content = json.loads(json.dumps(_content(_tokens())))
    *path, last = place.split(".")
    holder = content
    for key in path:
        holder = holder[int(key)] if isinstance(holder, list) else holder[key]
    holder[last] = value
    _write(tmp_path, content)
    with pytest.raises(ConvertError, match=message):
        read_tokenizer(tmp_path)
