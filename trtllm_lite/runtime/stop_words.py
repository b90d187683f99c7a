"""Stop words: sequences of token ids, or strings that are found across token boundaries.

Both filters below pass on what they are given, but for what may yet turn out to be the start of a stop word, so that
text which has been streamed is never taken back.
"""

import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trtllm_lite.errors import ArgumentError

_EXPECTED = (
    'expected stop words for all prompts (["\\n", "###"] or [[13], [198, 198]]; strings or token-id lists), or a list '
    "of them for each prompt"
)


@dataclass(frozen=True)
class StopWords:
    """The stop words of one request."""

    texts: tuple[str, ...] = ()
    sequences: tuple[tuple[int, ...], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.texts or self.sequences)


def parse_stop_words(value: Any, batch_size: int) -> list[StopWords]:
    """The stop words of each request from ``stop_words_list``: one list for all, or one for each. None means none.

    Raises ArgumentError for anything else, and for an empty word.
    """
    if value is None:
        return [StopWords()] * batch_size
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, Sequence | np.ndarray):
        raise ArgumentError(f"stop_words_list is {value!r}: {_EXPECTED}")
    if len(value) and all(_is_word(word) for word in value):
        return [_collect(value)] * batch_size
    if len(value) != batch_size:
        raise ArgumentError(f"stop_words_list has {len(value)} entries for {batch_size} prompts: {_EXPECTED}")
    return [_collect(() if words is None else words) for words in value]


def _is_word(word: Any) -> bool:
    if isinstance(word, str):
        return True
    is_list = isinstance(word, Sequence | np.ndarray)
    return is_list and len(word) > 0 and all(isinstance(token, numbers.Integral) for token in word)


def _collect(words: Any) -> StopWords:
    if isinstance(words, str):
        words = [words]
    if not isinstance(words, Sequence | np.ndarray) or not all(_is_word(word) for word in words):
        raise ArgumentError(f"stop_words_list holds {words!r}: {_EXPECTED}")
    texts = tuple(word for word in words if isinstance(word, str))
    if "" in texts:
        raise ArgumentError("stop_words_list holds an empty string, which would stop everything: leave it out")
    sequences = tuple(tuple(int(token) for token in word) for word in words if not isinstance(word, str))
    return StopWords(texts, sequences)


class StopSequenceFilter:
    """Finds stop sequences in a stream of generated token ids."""

    def __init__(self, sequences: Sequence[tuple[int, ...]]) -> None:
        self._sequences = sequences
        self._held: list[int] = []
        self.stopped = False

    def push(self, token: int) -> list[int]:
        """Add a token; returns those that are certainly not part of a stop sequence. Sets ``stopped`` at a match."""
        self._held.append(token)
        for sequence in self._sequences:
            if len(self._held) >= len(sequence) and tuple(self._held[len(self._held) - len(sequence) :]) == sequence:
                self.stopped = True
                released = self._held[: len(self._held) - len(sequence)]
                self._held = []
                return released
        keep = max((_overlap(self._held, sequence) for sequence in self._sequences), default=0)
        return self._take(len(self._held) - keep)

    def finish(self) -> list[int]:
        """The tokens still held back: generation ended inside a stop sequence."""
        return self._take(len(self._held))

    def _take(self, count: int) -> list[int]:
        released, self._held = self._held[:count], self._held[count:]
        return released


class StopTextFilter:
    """Finds stop strings in a stream of text; the earliest one wins."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._held = ""
        self.stopped = False

    def push(self, piece: str) -> str:
        """Add text; returns what is certainly not part of a stop string. Sets ``stopped`` at a match."""
        self._held += piece
        found = [position for text in self._texts if (position := self._held.find(text)) >= 0]
        if found:
            self.stopped = True
            return self._take_all()[: min(found)]
        keep = max((_overlap(self._held, text) for text in self._texts), default=0)
        released, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return released

    def finish(self) -> str:
        """The text still held back: generation ended inside a stop string."""
        return self._take_all()

    def _take_all(self) -> str:
        released, self._held = self._held, ""
        return released


def _overlap(stream: Sequence[Any], word: Sequence[Any]) -> int:
    """Length of the longest proper prefix of ``word`` that ``stream`` ends with."""
    for length in range(min(len(word) - 1, len(stream)), 0, -1):
        if list(stream[len(stream) - length :]) == list(word[:length]):
            return length
    return 0
