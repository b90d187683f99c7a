"""Streams hold back what may be the start of a stop word."""

from hypothesis import given, settings
from hypothesis import strategies as st

from trtllm_lite.runtime.text.stop_words import StopSequenceFilter, StopTextFilter


@settings(deadline=None)
@given(text=st.text("ab\n", max_size=20), words=st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3))
def test_text_ends_before_the_first_stop_string(text, words):
    stop = StopTextFilter(words)
    released = ""
    for character in text:
        released += stop.push(character)
        if stop.match:
            break
    if not stop.match:
        released += stop.finish()
    # The first stop string to be complete wins; of several, the one that starts first.
    ends = [text.find(word) + len(word) for word in words if word in text]
    assert bool(stop.match) == bool(ends)
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
        if stop.match:
            break
    if not stop.match:
        released += stop.finish()
    ends = [
        end for end in range(len(tokens) + 1) for word in words if tuple(tokens[max(end - len(word), 0) : end]) == word
    ]
    assert bool(stop.match) == bool(ends)
    seen = tokens[: min(ends)] if ends else tokens
    assert released == seen[: len(released)]
    assert not ends or tuple(seen[len(released) :]) in words
    assert ends or released == seen
