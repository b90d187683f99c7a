"""Parses stop words and banned words, which are texts or sequences of token ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from trtllm_lite.errors import ArgumentError, shown
from trtllm_lite.runtime.core import core
from trtllm_lite.runtime.values import check_length, is_list, is_whole_number

Word = str | Sequence[int]


@dataclass(frozen=True)
class WordLimits:
    """The maximum numbers of words of a request, and of characters or token ids of a word."""

    num_words: int
    length: int


@dataclass(frozen=True)
class Words:
    """The words of one request: words given as text, and words given as token ids."""

    texts: tuple[str, ...] = ()
    sequences: tuple[tuple[int, ...], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.texts or self.sequences)

    @cached_property
    def matcher(self) -> Any:
        """The ``_core.StopWords`` that finds the words in streams of tokens and text."""
        return core().StopWords(self.texts, self.sequences)


def parse_words(name: str, value: Any, limits: WordLimits) -> Words:
    """The words in a string, or in a list of strings and token-id lists; None stands for no words.

    ``name`` is the argument's name in messages. Raises LimitError for too many or too long words, ArgumentError for an
    empty word or any other value.
    """
    if value is None:
        return Words()
    words = [value] if isinstance(value, str) else value
    if is_list(words):
        check_length(name, len(words), limits.num_words, "words")
        for word in words:
            _check_word_length(name, word, limits)
    if not is_list(words) or not all(_is_word(word) for word in words):
        raise ArgumentError(
            f'{name} is {shown(value)}: expected a string, or a list such as ["\\n", "###"] or [[13], [1, 9]]'
        )
    texts = tuple(word for word in words if isinstance(word, str))
    if "" in texts:
        raise ArgumentError(f"{name} holds an empty string, which matches everywhere: leave it out")
    sequences = tuple(tuple(int(token) for token in word) for word in words if not isinstance(word, str))
    return Words(texts, sequences)


def words_per_prompt(name: str, value: Any, batch_size: int) -> list[Any]:
    """The argument of :func:`parse_words` for each prompt of a batch: ``value`` itself, or its entry for the prompt.

    Raises ArgumentError if ``value`` is neither one argument nor a list of one for each prompt.
    """
    if value is None or isinstance(value, str):
        return [value] * batch_size
    expected = (
        'expected words for all prompts (["\\n", "###"] or [[13], [198, 198]]; strings or token-id lists), or a list '
        "of them for each prompt"
    )
    if not is_list(value):
        raise ArgumentError(f"{name} is {shown(value)}: {expected}")
    if len(value) and all(_is_word(word) for word in value):
        return [value] * batch_size
    if len(value) != batch_size:
        raise ArgumentError(f"{name} has {len(value)} entries for {batch_size} prompts: {expected}")
    return list(value)


def _check_word_length(name: str, word: Any, limits: WordLimits) -> None:
    if isinstance(word, str):
        check_length(f"a word of {name}", len(word), limits.length, "characters")
    elif is_list(word):
        check_length(f"a word of {name}", len(word), limits.length, "token ids")


def _is_word(word: Any) -> bool:
    if isinstance(word, str):
        return True
    return is_list(word) and len(word) > 0 and all(map(is_whole_number, word))
