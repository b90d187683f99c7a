"""Words that stop or are banned: how they are given."""

import numpy as np
import pytest

from trtllm_lite.errors import ArgumentError
from trtllm_lite.runtime.text.words import Words, parse_words, words_per_prompt


def words_of(value, batch_size):
    return [parse_words("stop_words_list", words) for words in words_per_prompt("stop_words_list", value, batch_size)]


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


@pytest.mark.parametrize("value", [7, [7], [["a"]], [["a"], [0.5]], [["a"], ["b"], ["c"]], [[""], []], "", {"a": 1}])
def test_other_forms_are_refused(value):
    with pytest.raises(ArgumentError, match="stop_words_list"):
        words_of(value, 2)
