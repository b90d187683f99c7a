"""Stop words: how they are given, and that streams hold back what may be the start of one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtllm_lite.errors import ArgumentError
from trtllm_lite.runtime.stop_words import StopSequenceFilter, StopTextFilter, StopWords, parse_stop_words


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [StopWords(), StopWords()]),
        ("\n", [StopWords(("\n",))] * 2),
        (["\n", "###"], [StopWords(("\n", "###"))] * 2),
        ([[13], [198, 198]], [StopWords((), ((13,), (198, 198)))] * 2),
        (["\n", [13]], [StopWords(("\n",), ((13,),))] * 2),
        ([["\n"], None], [StopWords(("\n",)), StopWords()]),
        ([[[1, 2]], [[3]]], [StopWords((), ((1, 2),)), StopWords((), ((3,),))]),
        ([[], [np.array([3, 4])]], [StopWords(), StopWords((), ((3, 4),))]),
    ],
)
def test_forms(value, expected):
    assert parse_stop_words(value, 2) == expected


@pytest.mark.parametrize("value", [7, [7], [["a"]], [["a"], [0.5]], [["a"], ["b"], ["c"]], [[""], []], "", {"a": 1}])
def test_other_forms_are_refused(value):
    with pytest.raises(ArgumentError, match="stop_words_list"):
        parse_stop_words(value, 2)


@settings(deadline=None)
@given(text=st.text("ab\n", max_size=20), words=st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3))
def test_text_ends_before_the_first_stop_string(text, words):
    stop = StopTextFilter(words)
    released = ""
    for character in text:
        released += stop.push(character)
        if stop.stopped:
            break
    if not stop.stopped:
        released += stop.finish()
    # The first stop string to be complete wins; of several, the one that starts first.
    ends = [text.find(word) + len(word) for word in words if word in text]
    assert stop.stopped == bool(ends)
    seen = text[: min(ends)] if ends else text
    starts = [seen.find(word) for word in words if word in seen]
    assert released == seen[: min(starts, default=len(seen))]


@settings(deadline=None)
@given(
    tokens=st.lists(st.integers(0, 2), max_size=20),
    words=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple), max_size=3),
)
def test_tokens_end_before_the_first_stop_sequence(tokens, words):
    stop = StopSequenceFilter(words)
    released = []
    for token in tokens:
        released += stop.push(token)
        if stop.stopped:
            break
    if not stop.stopped:
        released += stop.finish()
    ends = [
        end for end in range(len(tokens) + 1) for word in words if tuple(tokens[max(end - len(word), 0) : end]) == word
    ]
    assert stop.stopped == bool(ends)
    seen = tokens[: min(ends)] if ends else tokens
    assert released == seen[: len(released)]
    assert not ends or tuple(seen[len(released) :]) in words
    assert ends or released == seen
