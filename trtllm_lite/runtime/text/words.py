"""Words that stop or must not appear: text, or sequences of token ids."""

import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trtllm_lite.errors import ArgumentError


@dataclass(frozen=True)
class Words:
    """Words of one request, those given as text and those given as token ids."""

    texts: tuple[str, ...] = ()
    sequences: tuple[tuple[int, ...], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.texts or self.sequences)


def parse_words(name: str, value: Any) -> Words:
    """Words from a string, or a list of strings and token-id lists; None means none.

    ``name`` is the argument's. Raises ArgumentError for anything else, and for an empty word.
    """
    words = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(words, Sequence | np.ndarray) or not all(_is_word(word) for word in words):
        raise ArgumentError(
            f'{name} is {value!r}: expected a string, or a list such as ["\\n", "###"] or [[13], [1, 9]]'
        )
    texts = tuple(word for word in words if isinstance(word, str))
    if "" in texts:
        raise ArgumentError(f"{name} holds an empty string, which is everywhere: leave it out")
    sequences = tuple(tuple(int(token) for token in word) for word in words if not isinstance(word, str))
    return Words(texts, sequences)


def words_per_prompt(name: str, value: Any, batch_size: int) -> list[Any]:
    """What :func:`parse_words` takes for each prompt of a batch: ``value`` is that for all, or a list of one for each.

    Raises ArgumentError if it is neither.
    """
    if value is None or isinstance(value, str):
        return [value] * batch_size
    expected = (
        'expected words for all prompts (["\\n", "###"] or [[13], [198, 198]]; strings or token-id lists), or a list '
        "of them for each prompt"
    )
    if not isinstance(value, Sequence | np.ndarray):
        raise ArgumentError(f"{name} is {value!r}: {expected}")
    if len(value) and all(_is_word(word) for word in value):
        return [value] * batch_size
    if len(value) != batch_size:
        raise ArgumentError(f"{name} has {len(value)} entries for {batch_size} prompts: {expected}")
    return list(value)


def _is_word(word: Any) -> bool:
    if isinstance(word, str):
        return True
    is_list = isinstance(word, Sequence | np.ndarray)
    return is_list and len(word) > 0 and all(isinstance(token, numbers.Integral) for token in word)
