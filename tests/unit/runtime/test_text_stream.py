"""TextStream: whatever the tokenizer, the text ends where a stop word begins, and no piece is ever taken back."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trtllm_lite import _core
from trtllm_lite.runtime.text.words import Words

from .texts import REPLACEMENT, TEXT, TOKENIZERS, byte_level_tokenizer, push, text_stream


def run(stream, token_ids, end_id=None):
    """The text that the stream gives, fed until it has found a stop word or the end."""
    pieces = []
    for token in token_ids:
        pieces += push(stream, [token], ends=token == end_id)
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
    stream = text_stream(tokenizer.token_bytes, [], Words((stop,)), includes_stop=include)
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
    stream = text_stream(tokenizer.token_bytes, [], Words((), (stop,)), includes_stop=include)
    assert run(stream, token_ids) == tokenizer.decode(token_ids[: first + (len(stop) if include else 0)])
    assert stream.match == stop


def test_stop_words_before_the_least_length_are_none():
    tokenizer = byte_level_tokenizer()
    token_ids = [tokenizer.encode(character)[0] for character in "a.b.c.d"]
    for words in (Words(("b.",)), Words((), ((token_ids[2], token_ids[3]),))):
        assert run(text_stream(tokenizer.token_bytes, [], words, min_tokens=4), token_ids) == "a."
        stream = text_stream(tokenizer.token_bytes, [], words, min_tokens=5)
        assert run(stream, token_ids) == "a.b.c.d"
        assert stream.match is None


@pytest.mark.parametrize("include", [False, True])
def test_an_end_token_is_part_of_the_text_only_if_asked_for(include):
    tokenizer = byte_level_tokenizer()
    token_ids = tokenizer.encode("the quick fox")
    stream = text_stream(tokenizer.token_bytes, [], Words(), includes_stop=include)
    assert len(token_ids) == len(set(token_ids))
    assert run(stream, token_ids, end_id=token_ids[2]) == tokenizer.decode(token_ids[: 3 if include else 2])


def test_without_a_decoder_there_is_no_text():
    stream = text_stream(None, [], Words((), ((5, 6),)))
    assert run(stream, [4, 5, 6, 7]) == ""
    assert stream.match == (5, 6)


def test_stop_strings_are_found_in_text_that_is_not_returned():
    tokenizer = byte_level_tokenizer()
    token_ids = tokenizer.encode("the quick fox")
    stream = text_stream(tokenizer.token_bytes, [], Words(("ick",)), returns_text=False)
    assert run(stream, token_ids) == ""
    assert stream.match == "ick"


def test_a_pump_handles_many_streams_at_once():
    tokenizer = byte_level_tokenizer()
    token_ids = tokenizer.encode("the quick fox")
    streams = [text_stream(tokenizer.token_bytes, [], Words((stop,))) for stop in ("fox", "the", "ick")]
    pump = _core.TextPump([1.0])
    pieces, stopped, failed = pump.push(streams, [token_ids, token_ids, []])
    assert ("".join(pieces[0]), "".join(pieces[1]), pieces[2]) == ("the quick ", "", [])
    assert len(pieces[1]) < len(pieces[0]) <= len(token_ids)
    assert (stopped, failed) == ([0, 1], [])
    assert [stream.match for stream in streams] == ["fox", "the", None]
    pieces, stopped, failed = pump.push([streams[0], streams[2], streams[2]], [token_ids, token_ids[:1], token_ids[1:]])
    assert ("".join(pieces[1] + pieces[2]), stopped, failed) == ("the qu", [2], [])
    assert pieces[0] == []


def test_a_pump_refuses_what_does_not_fit_together():
    stream = text_stream(None)
    with pytest.raises(ValueError, match="found 1 and 0"):
        _core.TextPump([1.0]).push([stream], [])
    with pytest.raises(IndexError):
        _core.TextPump([1.0]).push([stream], [[1]], [1])


def test_gaps_are_counted_once_a_delivery():
    pump, first, second = _core.TextPump([1e-9, 3600.0]), text_stream(None), text_stream(None)
    assert pump.gaps() == ([0, 0, 0], 0.0)
    pump.push([first, second, first], [[1], [2], [3]])
    assert sum(pump.gaps()[0]) == 0
    pump.push([first, second], [[1, 2, 3], []])
    pump.push([first], [[1]])
    counts, seconds = pump.gaps()
    assert sum(counts) == 2
    assert counts[2] == 0
    assert 0 < seconds < 3600
