"""Streams hold back what may be the start of a stop word."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtllm_lite.runtime.text.stop_words import StopFilter
from trtllm_lite.runtime.text.word_matcher import WordMatcher


def expected(stream, words, include):
    """What is left of ``stream``: the first word to be complete ends it; of several, the longest."""
    for end in range(len(stream) + 1):
        found = [word for word in words if end >= len(word) and stream[end - len(word) : end] == word]
        if found:
            longest = max(found, key=len)
            return stream[: end if include else end - len(longest)], longest
    return stream, None


def run(stop, pieces, nothing):
    released = nothing
    for piece in pieces:
        before = released
        released = released + stop.push(piece)
        assert released[: len(before)] == before
        if stop.match is not None:
            return released
    return released + stop.finish()


@settings(deadline=None)
@given(
    pieces=st.lists(st.text("ab\n", max_size=4), max_size=9),
    words=st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=4),
    include=st.booleans(),
)
def test_text_ends_before_the_first_stop_string(pieces, words, include):
    stop = StopFilter(WordMatcher(words), "", include)
    assert (run(stop, pieces, ""), stop.match) == expected("".join(pieces), words, include)


@settings(deadline=None)
@given(
    tokens=st.lists(st.integers(0, 2), max_size=20),
    words=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple), max_size=4),
)
def test_tokens_end_before_the_first_stop_sequence(tokens, words):
    stop = StopFilter(WordMatcher(words), [])
    released = run(stop, [[token] for token in tokens], [])
    assert (tuple(released), stop.match) == expected(tuple(tokens), words, False)


@settings(deadline=None)
@given(text=st.text("ab", max_size=20), words=st.lists(st.text("ab", min_size=1, max_size=4), max_size=4))
def test_only_what_may_become_a_stop_word_is_held(text, words):
    stop = StopFilter(WordMatcher(words), "")
    released = ""
    for end, character in enumerate(text, 1):
        released += stop.push(character, armed=False)
        starts = {word[:length] for word in words for length in range(len(word))} | {""}
        assert text[:end] == released + max((start for start in starts if text[:end].endswith(start)), key=len)
    assert released + stop.finish() == text
    assert stop.match is None


class CountingSymbol(str):
    """A character that counts how often it is looked up."""

    looked_up = 0

    def __hash__(self):
        CountingSymbol.looked_up += 1
        return super().__hash__()


@pytest.mark.parametrize(("num_words", "length"), [(1, 4), (64, 256)])
def test_the_work_for_each_character_depends_on_no_word(num_words, length):
    words = WordMatcher([chr(0x4E00 + row) * 2 + "a" * (length - 2) for row in range(num_words)] + ["a" * length])
    state = WordMatcher.START
    CountingSymbol.looked_up = 0
    for character in ("a" * (length - 1) + "b") * 20:
        state = words.after(state, CountingSymbol(character))
    assert CountingSymbol.looked_up <= 4 * 20 * length
