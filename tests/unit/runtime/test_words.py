"""The forms in which stop words and bad words are given."""

import numpy as np
import pytest

from trtllm_lite.errors import ArgumentError, LimitError
from trtllm_lite.runtime.text.words import WordLimits, Words, parse_words, words_per_prompt

LIMITS = WordLimits(num_words=3, length=4)


def words_of(value, batch_size):
    name = "stop_words_list"
    return [parse_words(name, words, LIMITS) for words in words_per_prompt(name, value, batch_size)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [Words(), Words()]),
        ("\n", [Words(("\n",))] * 2),
        (["\n", "###"], [Words(("\n", "###"))] * 2),
        ([[13], [198, 198]], [Words((), ((13,), (198, 198)))] * 2),
        (["\n", [13]], [Words(("\n",), ((13,),))] * 2),
        ([["\n"], None], [Words(("\n",)), Words()]),
        ([[[1, 2]], [[3]]], [Words((), ((1, 2),)), Words((), ((3,),))]),
        ([[], [np.array([3, 4])]], [Words(), Words((), ((3, 4),))]),
    ],
)
def test_forms(value, expected):
    assert words_of(value, 2) == expected


@pytest.mark.parametrize("value", [7, [7], [["a"]], [["a"], [0.5]], [["a"], ["b"], ["c"]], [[""], []], "", {1}, b""])
def test_other_forms_are_refused(value):
    with pytest.raises(ArgumentError, match="stop_words_list"):
        words_of(value, 2)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (["a"] * 4, "stop has 4 words, which exceeds 3"),
        ("abcde", "a word of stop has 5 characters, which exceeds 4"),
        (["a", "x" * 300_000], "a word of stop has 300,000 characters"),
        ([range(10**9)], "a word of stop has 1,000,000,000 token ids"),
        (range(10**9), "stop has 1,000,000,000 words"),
    ],
)
def test_too_many_and_too_long_words_are_refused_before_they_are_looked_at(value, message):
    with pytest.raises(LimitError, match=message) as raised:
        parse_words("stop", value, LIMITS)
    assert len(str(raised.value)) < 200


def test_iterators_and_arrays_without_entries_are_refused():
    for value in (iter(["a"]), np.array(5), [np.array(5)], {1, 2}):
        with pytest.raises(ArgumentError, match="stop is"):
            parse_words("stop", value, LIMITS)
