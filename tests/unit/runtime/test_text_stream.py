"""TextStream: whatever the tokenizer, the text ends where a stop word begins, and no piece is ever taken back."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trtllm_lite.runtime.text.detokenizer import REPLACEMENT
from trtllm_lite.runtime.text.text_stream import TextStream
from trtllm_lite.runtime.text.words import Words

from .texts import TEXT, TOKENIZERS, byte_level_tokenizer


def run(stream, token_ids, end_id=None):
    """The text that the stream gives, fed until it has found a stop word or the end."""
    pieces = []
    for token in token_ids:
        pieces.append(stream.push(token, is_end=token == end_id))
        if stream.match is not None or token == end_id:
            break
    return "".join(pieces) + stream.finish()


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("name", TOKENIZERS)
@settings(deadline=None)
@given(text=TEXT, start=st.integers(0, 40), length=st.integers(1, 4))
def test_a_stop_string_ends_the_text(name, include, text, start, length):
    tokenizer = TOKENIZERS[name]()
    token_ids = tokenizer.encode(text)
    decoded = tokenizer.decode(token_ids)
    assume(decoded and REPLACEMENT not in decoded)
    start %= len(decoded)
    stop = decoded[start : start + length]
    stream = TextStream(tokenizer.decode, [], Words((stop,)), include_stop=include)
    assert run(stream, token_ids) == decoded[: decoded.find(stop)] + (stop if include else "")
    assert stream.match == stop


@pytest.mark.parametrize("include", [False, True])
@settings(deadline=None)
@given(text=TEXT, start=st.integers(0, 20), length=st.integers(1, 3))
def test_a_stop_sequence_ends_the_text(include, text, start, length):
    tokenizer = byte_level_tokenizer()
    token_ids = tokenizer.encode(text)
    assume(token_ids and REPLACEMENT not in text)
    start %= len(token_ids)
    stop = tuple(token_ids[start : start + length])
    first = next(i for i in range(len(token_ids)) if tuple(token_ids[i : i + len(stop)]) == stop)
    stream = TextStream(tokenizer.decode, [], Words((), (stop,)), include_stop=include)
    assert run(stream, token_ids) == tokenizer.decode(token_ids[: first + (len(stop) if include else 0)])
    assert stream.match == stop


def test_stop_words_before_the_least_length_are_none():
    tokenizer = byte_level_tokenizer()
    token_ids = [tokenizer.encode(character)[0] for character in "a.b.c.d"]
    for words in (Words(("b.",)), Words((), ((token_ids[2], token_ids[3]),))):
        assert run(TextStream(tokenizer.decode, [], words, min_tokens=4), token_ids) == "a."
        stream = TextStream(tokenizer.decode, [], words, min_tokens=5)
        assert run(stream, token_ids) == "a.b.c.d"
        assert stream.match is None


@pytest.mark.parametrize("include", [False, True])
def test_an_end_token_is_part_of_the_text_only_if_asked_for(include):
    tokenizer = byte_level_tokenizer()
    token_ids = tokenizer.encode("the quick fox")
    stream = TextStream(tokenizer.decode, [], Words(), include_stop=include)
    assert len(token_ids) == len(set(token_ids))
    assert run(stream, token_ids, end_id=token_ids[2]) == tokenizer.decode(token_ids[: 3 if include else 2])


def test_without_a_decoder_there_is_no_text():
    stream = TextStream(None, [], Words((), ((5, 6),)))
    assert run(stream, [4, 5, 6, 7]) == ""
    assert stream.match == (5, 6)


def test_stop_strings_are_found_in_text_that_is_not_returned():
    tokenizer = byte_level_tokenizer()
    token_ids = tokenizer.encode("the quick fox")
    stream = TextStream(tokenizer.decode, [], Words(("ick",)), returns_text=False)
    assert run(stream, token_ids) == ""
    assert stream.match == "ick"
