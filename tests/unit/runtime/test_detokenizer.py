"""Streamed pieces join to the whole text: no space lost, no character split, whatever the tokenizer."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models import tiny_tokenizer
from trtllm_lite.runtime.text.detokenizer import REPLACEMENT, IncrementalDetokenizer

from .texts import TEXT, TOKENIZERS, byte_level_tokenizer, sentencepiece_backend, sentencepiece_tokenizer


def pieces_of(tokenizer, token_ids, prompt_ids=()):
    detokenizer = IncrementalDetokenizer(tokenizer.decode, prompt_ids)
    return [*(detokenizer.push(token) for token in token_ids), detokenizer.finish()]


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


@settings(deadline=None)
@given(ids=st.lists(st.integers(0, 391), max_size=40), cut=st.integers(0, 40))
def test_any_byte_level_tokens_join_to_their_decoding(ids, cut):
    tokenizer = byte_level_tokenizer()
    start = tokenizer.decode(ids[:cut])
    if start.endswith(REPLACEMENT):
        return
    assert start + "".join(pieces_of(tokenizer, ids[cut:], ids[:cut])) == tokenizer.decode(ids)


@settings(deadline=None)
@given(ids=st.lists(st.integers(3, 258), max_size=60))
def test_any_byte_tokens_lose_no_complete_character(ids):
    """A byte-fallback decoder turns a whole run of bytes to U+FFFD if one is wrong; a stream cannot take text back.

    So the pieces may hold more than the decoding does, and never less.
    """
    tokenizer = sentencepiece_tokenizer()
    streamed = "".join(pieces_of(tokenizer, ids))
    whole = tokenizer.decode(ids)
    assert whole == streamed or whole.count(REPLACEMENT) >= streamed.count(REPLACEMENT)


def byte_tokens(name: str, data: bytes) -> list[int]:
    """One token for each byte, for either kind of tokenizer."""
    if name == "sentencepiece":
        return [sentencepiece_backend().token_to_id(f"<0x{byte:02X}>") for byte in data]
    # The byte-level alphabet: printable Latin-1 characters stand for themselves, the others for U+0100 on, in order.
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


@pytest.mark.parametrize("silent", [[1], [1, 2, 0]])
def test_tokens_that_print_nothing_are_not_decoded_again_and_again(silent):
    tokenizer = sentencepiece_tokenizer()
    ids = tokenizer.encode("the fox")
    longest = 0

    def decode(token_ids):
        nonlocal longest
        longest = max(longest, len(token_ids))
        return tokenizer.decode(token_ids)

    detokenizer = IncrementalDetokenizer(decode, ids)
    pieces = [detokenizer.push(token) for token in [*silent * 2000, *ids]]
    assert longest < 64
    assert "".join(pieces) == " the fox"


def test_bytes_that_never_become_characters_are_held_in_bounded_number():
    longest = 0

    def decode(token_ids):
        nonlocal longest
        longest = max(longest, len(token_ids))
        return f"{len(token_ids)}{REPLACEMENT}"  # nothing that two halves would add up to

    detokenizer = IncrementalDetokenizer(decode)
    for _ in range(1000):
        detokenizer.push(3)
    assert longest < 200
