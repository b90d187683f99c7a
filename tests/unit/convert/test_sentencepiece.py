"""tokenizer.model becomes a tokenizer that gives the same ids and text as SentencePiece."""

import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from tokenizers import Tokenizer

from trtllm_lite.convert.tokenizers.files import read_tokenizer
from trtllm_lite.convert.tokenizers.sentencepiece_file import read_sentencepiece
from trtllm_lite.convert.tokenizers.sentencepiece_tokenizer import Vocabulary, build_tokenizer
from trtllm_lite.errors import ConvertError

_CORPUS = [line for path in sorted(Path(__file__).parent.glob("*.py")) for line in path.read_text().splitlines()][:1200]
_CORPUS += ["naïve café Ångström 你好，世界 こんにちは", "aaa aaaa aaaaa abab ababa ababab ﬁ ① ½"] * 30
_TEXTS = [
    *("", " ", "   ", "Hello, world!", "trailing ", "  two  spaces, a\ttab\n\n and\r\n lines   "),
    *("naïve café e\u0301 ﬁ ① ½ Å", "你好，世界 안녕 مرحبا", "🙂👍🏽👨‍👩‍👧 ∑ \u00a0\u200b|\u3000x", "\x00\x01"),
    *("aaaaaaaaa aaaaaaa abababa", "▁literal▁ ▁", "def f(x):\n    return x**2\n\n\n", "<tool>x <tool><tool>"),
]
_LLAMA = {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity"}
_KINDS: dict[str, dict[str, Any]] = {
    "llama": {**_LLAMA, "split_digits": True},
    "gemma": {**_LLAMA, "add_dummy_prefix": False, "user_defined_symbols": ["▁▁", "▁▁▁", "▁▁▁▁▁", "\n\n", "<tool>"]},
    "nfkc": {"model_type": "bpe", "normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True},
    "t5": {"model_type": "unigram", "normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True},
    "unigram": {**_LLAMA, "model_type": "unigram", "user_defined_symbols": ["▁▁", "\n\n", "<tool>"]},
}


def _train(**options: Any) -> bytes:
    model = io.BytesIO()
    options = {"vocab_size": 700, "character_coverage": 0.9995, "remove_extra_whitespaces": False, **options}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(_CORPUS), model_writer=model, minloglevel=2, num_threads=1, **options
    )
    return model.getvalue()


@pytest.fixture(scope="module")
def llama() -> bytes:
    return _train(**_KINDS["llama"])


def _texts() -> list[str]:
    choose = random.Random(0)
    letters = ["a", "b", " ", " ", "  ", "\n", "the", "0", "_", "é", "你", "aaa"]
    return _TEXTS + ["".join(choose.choices(letters, k=choose.randrange(40))) for _ in range(400)]


@pytest.mark.parametrize("kind", _KINDS)
def test_ids_and_text_are_those_of_sentencepiece(kind: str, tmp_path: Path) -> None:
    model = _train(**_KINDS[kind])
    (tmp_path / "tokenizer.model").write_bytes(model)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
    ours = build_tokenizer(read_sentencepiece(tmp_path / "tokenizer.model").vocabulary)
    for text in _texts():
        ids, found = theirs.encode(text), ours.encode(text).ids
        # Two orders of the same pieces are equally likely; rounding decides, and sums are float32 on one side, float64
        # on the other.
        tied = _KINDS[kind]["model_type"] == "unigram" and sorted(found) == sorted(ids)
        assert found == ids or tied, text
        if theirs.unk_id() not in ids:  # SentencePiece prints the unknown token as a question mark
            assert ours.decode(ids) == theirs.decode(ids), text


def test_unused_pieces_are_spelled_by_no_text(tmp_path: Path) -> None:
    """The test finds the pieces that a text is split into, then marks them unused, so that SentencePiece skips them."""
    model = ModelProto.FromString(_train(**_KINDS["t5"]))
    plain = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
    for number in set(plain.encode("def test the of and import self the_text")):
        if len(model.pieces[number].piece) > 1:
            model.pieces[number].type = 5
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
    (tmp_path / "tokenizer.model").write_bytes(model.SerializeToString())
    ours = build_tokenizer(read_sentencepiece(tmp_path / "tokenizer.model").vocabulary)
    for text in (*_TEXTS, "def test the of and import self", "the_text"):
        ids = theirs.encode(text)
        assert sorted(ours.encode(text).ids) == sorted(ids), text
    assert theirs.encode("def test the") != plain.encode("def test the")


def test_broken_utf8_decodes_to_replacement_characters(llama: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(llama)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=llama)
    ours = build_tokenizer(read_sentencepiece(tmp_path / "tokenizer.model").vocabulary)
    for pieces in (["<0xF0>", "<0x9F>"], ["a", "<0xE4>", "b"], ["<0xE4>", "<0xBD>", "<0xA0>"]):
        ids = [theirs.piece_to_id(piece) for piece in pieces]
        assert ours.decode(ids) == theirs.decode(ids)


def test_a_directory_with_tokenizer_model_alone(llama: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(llama)
    text, config = read_tokenizer(tmp_path)
    assert config == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    tokenizer = Tokenizer.from_str(str(text))
    assert tokenizer.encode("the").ids == [1, *sentencepiece.SentencePieceProcessor(model_proto=llama).encode("the")]
    assert tokenizer.encode("</s>", add_special_tokens=False).ids == [2]


@pytest.mark.parametrize("place", ["tokenizer_config.json", "added_tokens.json"])
def test_added_tokens_and_settings_count(llama: bytes, tmp_path: Path, place: str) -> None:
    (tmp_path / "tokenizer.model").write_bytes(llama)
    settings: dict[str, Any] = {"add_bos_token": False, "add_eos_token": True, "eos_token": {"content": "<|end|>"}}
    if place == "added_tokens.json":
        (tmp_path / place).write_text(json.dumps({"<|user|>": 701, "<|end|>": 700}))
    else:
        special = {"content": "<|end|>", "special": True, "normalized": False}
        settings["added_tokens_decoder"] = {"700": special, "701": {"content": "<|user|>"}, "2": {"content": "</s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    text, config = read_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_str(str(text))
    assert (config["bos_token"], config["eos_token"]) == ("<s>", "<|end|>")
    ids = tokenizer.encode("<|user|>the").ids
    assert (ids[0], ids[-1]) == (701, 700)
    assert tokenizer.decode(ids) == "<|user|> the"


def _edit(change: Callable[[ModelProto], object]) -> Callable[[bytes], bytes]:
    def edit(content: bytes) -> bytes:
        model = ModelProto.FromString(content)
        change(model)
        return model.SerializeToString()

    return edit


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda model: model[:-7], "to be a SentencePiece model, but"),
        (lambda _: b"", "found one without pieces"),
        (_edit(lambda model: setattr(model.trainer_spec, "model_type", 4)), "with CHAR, expected UNIGRAM or BPE"),
        (_edit(lambda model: setattr(model.trainer_spec, "treat_whitespace_as_suffix", True)), "whitespace_as_suffix"),
        (_edit(lambda model: setattr(model.normalizer_spec, "escape_whitespaces", False)), "not escaped"),
        (_edit(lambda model: setattr(model.pieces[300], "piece", "x" * 300_000)), "a token of 300000 characters"),
        (_edit(lambda model: setattr(model.pieces[300], "score", float("nan"))), "whose score is not a number"),
        (lambda model: model.replace(b"\n\x03<s>", b"\n\x03\xff\xff\xff"), "to be UTF-8, found other bytes"),
        (_edit(lambda model: model.pieces.add(piece="▁▁", type=4)), "user-defined pieces with spaces"),
    ],
)
def test_what_cannot_be_expressed_is_an_error(
    llama: bytes, tmp_path: Path, damage: Callable[[bytes], bytes], message: str
) -> None:
    (tmp_path / "tokenizer.model").write_bytes(damage(llama))
    with pytest.raises(ConvertError, match=message):
        read_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"added_tokens_decoder": {"900": {"content": "<x>"}}}, "number 900 to a tokenizer where that is not"),
        ({"added_tokens_decoder": {"x": {}}}, "to be objects by id"),
        ({"added_tokens_decoder": ["<x>"]}, "to be objects by id"),
        ({"bos_token": "<begin>"}, "has no token '<begin>'"),
    ],
)
def test_wrong_settings_are_errors(llama: bytes, tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    (tmp_path / "tokenizer.model").write_bytes(llama)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(ConvertError, match=message):
        read_tokenizer(tmp_path)


def test_overlapping_joins_go_to_the_left() -> None:
    """In a run of four, the three on the left become one piece, whichever two of them were joined first."""
    pieces = ["<unk>", "ab", "aba", "ababa", "a", "b"]
    scores, types = [0.0, -1.0, -2.0, -3.0, -4.0, -4.0], [2, 1, 1, 1, 1, 1]
    model = ModelProto()
    model.trainer_spec.model_type = 2
    model.normalizer_spec.add_dummy_prefix = False
    for piece, score, kind in zip(pieces, scores, types, strict=True):
        model.pieces.add(piece=piece, score=score, type=kind)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
    ours = build_tokenizer(Vocabulary(pieces, scores, types, byte_fallback=False, add_dummy_prefix=False))
    for number in range(1024):
        text = f"{number:b}".replace("0", "a").replace("1", "b")
        assert ours.encode(text).tokens == theirs.encode(text, out_type=str), text
