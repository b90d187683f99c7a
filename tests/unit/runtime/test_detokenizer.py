"""Streamed pieces join to the whole text: no space lost, no character split, whatever the tokenizer."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models
from tokenizers import Tokenizer as Backend

from tests.models import tiny_tokenizer
from trtllm_lite import _core
from trtllm_lite.errors import EngineError
from trtllm_lite.runtime.text.tokenizer import Tokenizer

from .texts import (
    REPLACEMENT,
    TEXT,
    TOKENIZERS,
    byte_level_tokenizer,
    kept,
    pieces_of,
    push,
    sentencepiece_backend,
    sentencepiece_tokenizer,
    text_stream,
)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(deadline=None)
@given(text=TEXT)
def test_pieces_of_a_text_join_to_it(name, text):
    tokenizer = TOKENIZERS[name]()
    ids = tokenizer.encode(text)
    pieces = pieces_of(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids)
    if REPLACEMENT not in text and "▁" not in text:
        assert "".join(pieces) == text
        assert not any(REPLACEMENT in piece for piece in pieces)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(deadline=None)
@given(text=TEXT, cut=st.integers(0, 40))
def test_a_text_is_continued_where_the_prompt_ends(name, text, cut):
    tokenizer = TOKENIZERS[name]()
    ids = tokenizer.encode(text)
    prompt, rest = ids[:cut], ids[cut:]
    start = tokenizer.decode(prompt)
    if REPLACEMENT in start + text:
        return
    assert start + "".join(pieces_of(tokenizer, rest, prompt)) == tokenizer.decode(ids)


# Tokens of all kinds: text, spaces, bytes by fallback, letters of GPT-2's alphabet for whole and broken characters.
_PIECES = [
    *(
        "the",
        "▁the",
        "▁",
        "▁▁",
        " ",
        "a▁b",
        "",
        "x",
        "你",
        "é",
        "ä½ł",
        "ä½",
        "ł",
        "Ġ",
        "Ġfox",
        "Ċ",
        "Ã",
        "©",
        "ð",
        "ŁĻ",
    ),
    *("<0xE4>", "<0xBD>", "<0xA0>", "<0xC3>", "<0xA9>", "<0x41>", "<0x20>", "<0xFF>", "<0x+5>", "<0x4é>", "<0x>"),
]
_ADDED = ["<user>", "▁user", "Ġuser"]
_SPECIAL = ["<s>", "</s>", "<｜end▁of▁text｜>"]
NUM_IDS = len(_PIECES) + len(_ADDED) + len(_SPECIAL) + 2  # the last two ids have no token

llama = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
DECODERS = {
    "byte_level": decoders.ByteLevel(),
    "byte_level_in_sequence": decoders.Sequence([decoders.Replace("▁", "Ġ"), decoders.ByteLevel(), decoders.Fuse()]),
    "llama": decoders.Sequence([*llama, decoders.Strip(" ", 1, 0)]),
    "two_stripped": decoders.Sequence([*llama, decoders.Strip(" ", 2, 0)]),
    "gemma": decoders.Sequence(llama),
    "without_fuse": decoders.Sequence(llama[:2]),
    "metaspace": decoders.Metaspace(),
    "metaspace_without_prefix": decoders.Metaspace(prepend_scheme="never"),
    "metaspace_with_bytes": decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback()]),
    "replacements": decoders.Sequence([decoders.Replace("▁", " "), decoders.Replace("th", "T"), decoders.Fuse()]),
    "none": None,
}
# The characters that the tokens for bytes can form, and U+FFFD.
_REST = (0xBD, 0xA0, 0xA9)
_OF_BYTES = [bytes((0xC3, last)) for last in _REST]
_OF_BYTES += [bytes((0xE4, middle, last)) for middle in _REST for last in _REST]
OF_BYTES = f"[{REPLACEMENT}A \x05{b''.join(_OF_BYTES).decode()}]"
TOKEN_IDS = st.lists(st.integers(0, NUM_IDS - 1), max_size=24)


@kept
def tokenizer_with(name: str) -> Tokenizer:
    backend = Backend(models.BPE(vocab={piece: number for number, piece in enumerate(_PIECES)}, merges=[]))
    backend.add_tokens([AddedToken(token, normalized=False) for token in _ADDED])
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in _SPECIAL])
    if DECODERS[name] is not None:
        backend.decoder = DECODERS[name]
    return Tokenizer(backend, {})


def decoded(tokenizer: Tokenizer, ids: list[int], *, skips_special: bool) -> str:
    return tokenizer.decode(ids) if skips_special else tokenizer.decode_all(ids)


def number_of_bytes(tokenizer: Tokenizer, ids: list[int]) -> int:
    return sum(re.fullmatch("<0x[0-9A-F+]{2}>", tokenizer._backend.id_to_token(i) or "") is not None for i in ids)


def continuations(start: str, whole: str) -> set[str]:
    """The texts that may follow ``start``, which ends with U+FFFD while bytes of its last character are missing."""
    known = start.rstrip(REPLACEMENT)
    starts = (known + REPLACEMENT * count for count in range(len(start) - len(known) + 1))
    return {whole.removeprefix(begin) for begin in starts if whole.startswith(begin)}


@pytest.mark.parametrize("skips_special", [True, False])
@pytest.mark.parametrize("name", DECODERS)
@settings(deadline=None)
@given(ids=TOKEN_IDS, cut=st.integers(0, 24))
@example(ids=[0, 16, 16, 17], cut=3)
@example(ids=[25, 23, 21], cut=2)
@example(ids=[20, 21, 22, 20, 3, 22, 0], cut=2)
@example(ids=[2, 3, 2, 0], cut=1)
@example(ids=[11, 12, 11, 0, 12], cut=1)
def test_any_tokens_join_to_what_the_library_decodes(name, skips_special, ids, cut):
    tokenizer = tokenizer_with(name)
    start = decoded(tokenizer, ids[:cut], skips_special=skips_special)
    whole = decoded(tokenizer, ids, skips_special=skips_special)
    pieces = pieces_of(tokenizer, ids[cut:], ids[:cut], skips_special=skips_special)
    text = "".join(pieces)
    if "bytes" not in name and name not in ("llama", "two_stripped", "gemma", "without_fuse"):
        assert text in continuations(start, whole)
        return
    # The library replaces each byte of an invalid run by U+FFFD, even if the run begins with valid characters. A stream
    # has already returned these characters when the invalid byte comes.
    if REPLACEMENT not in whole:
        known = start.rstrip(REPLACEMENT)
        of_prompt = f"{OF_BYTES}{{0,{len(start) - len(known)}}}"  # what the prompt's last run of bytes decodes to
        assert re.fullmatch(re.escape(known) + of_prompt + re.escape(text), whole)
    kept = re.sub(OF_BYTES, "", text)
    assert re.sub(OF_BYTES, "", start) + kept == re.sub(OF_BYTES, "", whole)


@settings(deadline=None)
@given(data=st.lists(st.binary(max_size=4), max_size=12))
def test_bytes_become_what_rust_makes_of_them(data):
    tokenizer = byte_level_tokenizer()
    ids = [token for part in data for token in byte_tokens("byte_level", part)]
    assert "".join(pieces_of(tokenizer, ids)) == tokenizer.decode(ids)


@settings(deadline=None)
@given(ids=st.lists(st.integers(0, 391), max_size=40), cut=st.integers(0, 40))
def test_any_byte_level_tokens_join_to_their_decoding(ids, cut):
    tokenizer = byte_level_tokenizer()
    start = tokenizer.decode(ids[:cut])
    if start.endswith(REPLACEMENT):
        return
    assert start + "".join(pieces_of(tokenizer, ids[cut:], ids[:cut])) == tokenizer.decode(ids)


def of_byte_run(data: bytes) -> str:
    """Characters up to the first broken byte, and U+FFFD for each byte from there on."""
    for length in range(len(data), -1, -1):
        try:
            return data[:length].decode() + REPLACEMENT * (len(data) - length)
        except UnicodeDecodeError:
            pass
    raise AssertionError


@settings(deadline=None)
@given(data=st.binary(max_size=20) | st.text("a你é🙂", max_size=6).map(str.encode))
def test_a_broken_run_of_bytes_keeps_the_characters_before_it(data):
    """A byte-fallback decoder turns a whole run of bytes to U+FFFD if one is wrong; a stream cannot take text back."""
    tokenizer = sentencepiece_tokenizer()
    ids = byte_tokens("sentencepiece", data)
    text = of_byte_run(data)
    assert "".join(pieces_of(tokenizer, ids)) == text.removeprefix(" ")
    if REPLACEMENT in tokenizer.decode(ids):
        assert tokenizer.decode(ids) == REPLACEMENT * len(data)
    else:
        assert tokenizer.decode(ids) == text.removeprefix(" ")


def byte_tokens(name: str, data: bytes) -> list[int]:
    """One token for each byte, for either kind of tokenizer."""
    if name == "sentencepiece":
        return [sentencepiece_backend().token_to_id(f"<0x{byte:02X}>") for byte in data]
    # The byte-level alphabet: printable Latin-1 characters stand for themselves, U+0100 and up for the other bytes.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + row) for row, byte in enumerate(others)}
    return [tiny_tokenizer().token_to_id(letters[byte]) for byte in data]


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("text", ["你好", "🙂👍", "é", "a你b", f"{REPLACEMENT}{REPLACEMENT}", "👨\u200d👩"])
def test_a_character_appears_once_all_its_bytes_are_there(name, text):
    tokenizer = TOKENIZERS[name]()
    pieces = pieces_of(tokenizer, byte_tokens(name, text.encode()))
    assert "".join(pieces) == text
    if REPLACEMENT not in text:
        assert all(piece == "" or piece in text for piece in pieces[:-1])
        assert REPLACEMENT not in "".join(pieces)


@pytest.mark.parametrize("text", [REPLACEMENT * 40 + "你好", "é" + REPLACEMENT * 50])
def test_long_runs_of_real_replacement_characters_survive(text):
    tokenizer = byte_level_tokenizer()
    assert "".join(pieces_of(tokenizer, byte_tokens("byte_level", text.encode()))) == text


def test_a_prompt_that_ends_inside_a_character_is_completed():
    tokenizer = byte_level_tokenizer()
    ids = byte_tokens("byte_level", "x你".encode())
    assert "".join(pieces_of(tokenizer, ids[2:], ids[:2])) == "你"


def test_special_tokens_print_nothing_and_cost_no_space():
    tokenizer = sentencepiece_tokenizer()
    ids = tokenizer.encode("the fox")
    words = [ids[: len(ids) // 2], ids[len(ids) // 2 :]]
    assert "".join(pieces_of(tokenizer, [*words[0], 2, 2, *words[1]])) == "the fox"


def test_broken_bytes_at_the_end_are_shown():
    tokenizer = byte_level_tokenizer()
    assert "".join(pieces_of(tokenizer, byte_tokens("byte_level", "a你".encode())[:-1])) == "a" + REPLACEMENT


def test_a_prompt_that_ends_inside_a_broken_character_has_shown_it():
    for name in TOKENIZERS:
        (first,), (letter,) = byte_tokens(name, b"\xe4"), byte_tokens(name, b"x")
        assert "".join(pieces_of(TOKENIZERS[name](), [2], [first])) == ""
        assert "".join(pieces_of(TOKENIZERS[name](), [letter], [first])) in ("x", REPLACEMENT)


def test_tokens_beyond_the_vocabulary_print_nothing():
    tokenizer = byte_level_tokenizer()
    ids = tokenizer.encode("the fox")
    assert "".join(pieces_of(tokenizer, [1 << 20, *ids, -1, 396])) == "the fox"


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.WordPiece(),
        decoders.BPEDecoder(),
        decoders.CTC(),
        decoders.Replace(Regex("a"), "b"),
        decoders.Sequence([decoders.Fuse(), decoders.Replace("▁", " ")]),
        decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
        decoders.Sequence([decoders.ByteFallback(), decoders.ByteLevel()]),
        decoders.Strip(" ", 1, 0),
    ],
)
def test_other_decoders_are_refused_when_text_is_asked_for(decoder):
    backend = Backend(models.BPE(vocab={"a": 0}, merges=[]))
    backend.decoder = decoder
    tokenizer = Tokenizer(backend, {})
    assert tokenizer.encode("a") == [0]
    with pytest.raises(EngineError, match=r"the decoder of the tokenizer's tokenizer.json .*detokenize=False"):
        _ = tokenizer.token_bytes


def test_a_token_with_a_large_id_is_refused():
    rules = {"replacements": [], "bytes": _core.ByteSpelling.NONE, "separator": "", "stripped": "", "max_stripped": 0}
    with pytest.raises(EngineError, match="the id 16777216, expected at most 16777215"):
        _core.TokenBytes({"a": 1 << 24}, {}, [], **rules)


def test_a_token_may_end_several_characters():
    stream = text_stream(byte_level_tokenizer().token_bytes)
    assert push(stream, byte_tokens("byte_level", "你".encode())) == ["", "", "你"]
