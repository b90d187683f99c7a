"""Streams hold back what may be the start of a stop word."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trtllm_lite import _core
from trtllm_lite.runtime.text.words import Words

from .texts import push, text_stream

LETTERS = "ab\n\N{LATIN SMALL LETTER E WITH ACUTE}\N{LATIN SMALL LETTER E WITH GRAVE}"  # the last two share a byte


def expected(stream, words, include):
    """``stream`` up to its first complete stop word, and that word: the longest of those that end there."""
    for end in range(len(stream) + 1):
        found = [word for word in words if end >= len(word) and stream[end - len(word) : end] == word]
        if found:
            longest = max(found, key=len)
            return stream[: end if include else end - len(longest)], longest
    return stream, None


def tokens_that_print(pieces):
    """``_core.TokenBytes`` whose tokens are ``pieces``."""
    rules = {"replacements": [], "separator": "", "stripped": "", "max_stripped": 0}
    return _core.TokenBytes({}, dict(enumerate(pieces)), [], bytes=_core.ByteSpelling.NONE, **rules)


def run(pieces, words, *, include=False, min_tokens=0):
    stream = text_stream(tokens_that_print(pieces), [], words, includes_stop=include, min_tokens=min_tokens)
    released = [text for token in range(len(pieces)) for text in push(stream, [token])]
    if stream.match is None:
        released.append(stream.finish())
    return released, stream.match


@settings(deadline=None)
@given(
    pieces=st.lists(st.text(LETTERS, max_size=4), max_size=9),
    words=st.lists(st.text(LETTERS, min_size=1, max_size=4), max_size=4),
    include=st.booleans(),
)
def test_text_ends_before_the_first_stop_string(pieces, words, include):
    released, match = run(pieces, Words(tuple(words)), include=include)
    assert ("".join(released), match) == expected("".join(pieces), words, include)


@settings(deadline=None)
@given(
    tokens=st.lists(st.integers(0, 2), max_size=20),
    words=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple), max_size=4),
    include=st.booleans(),
)
def test_tokens_end_before_the_first_stop_sequence(tokens, words, include):
    stream = text_stream(tokens_that_print("abc"), [], Words((), tuple(words)), includes_stop=include)
    released = "".join(push(stream, tokens))
    if stream.match is None:
        released += stream.finish()
    left, match = expected(tuple(tokens), words, include)
    assert (released, stream.match) == ("".join("abc"[token] for token in left), match)


@settings(deadline=None)
@given(text=st.text(LETTERS, max_size=20), words=st.lists(st.text(LETTERS, min_size=1, max_size=4), max_size=4))
def test_only_what_may_become_a_stop_word_is_held(text, words):
    pieces, match = run(list(text), Words(tuple(words)), min_tokens=100)
    released = ""
    for end, piece in enumerate(pieces[:-1], 1):
        released += piece
        starts = {word[:length] for word in words for length in range(len(word))} | {""}
        assert text[:end] == released + max((start for start in starts if text[:end].endswith(start)), key=len)
    assert released + pieces[-1] == text
    assert match is None


def test_the_most_and_longest_words_are_found():
    words = [chr(0x4E00 + row) * 2 + "a" * 254 for row in range(63)] + ["a" * 256]
    generator = np.random.default_rng(5)
    for word in (words[-1], words[17]):
        text = "".join(generator.choice([*"ab", chr(0x4E00 + 17)], 500)) + "b" + word
        pieces = [text[start : start + 3] for start in range(0, len(text), 3)]
        released, match = run(pieces, Words(tuple(words)))
        assert ("".join(released), match) == expected(text, words, False)
