"""Finds how a tokenizer can write a text: single tokens that contain it, and the token sequences it would choose."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

# Tokens are decoded after this text, since decoders strip the space of the first token.
_FIRST = "\n"
# Texts after which a word may have other tokens than at the start of a text.
_BEFORE = ("", " ", _FIRST)
_SEPARATOR = "\0"


@dataclass(frozen=True)
class Spellings:
    """``tokens`` are single tokens that contain the text; each of ``sequences`` spells it with several tokens."""

    tokens: frozenset[int]
    sequences: tuple[tuple[int, ...], ...]


class Speller:
    """Spells texts with the tokens of one tokenizer, and remembers the text of each token.

    ``encode`` maps text to token ids without special tokens, ``decode_batch`` lists of token ids to texts.
    """

    def __init__(
        self,
        num_tokens: int,
        encode: Callable[[str], list[int]],
        decode_batch: Callable[[Sequence[Sequence[int]]], list[str]],
    ) -> None:
        self._encode = encode
        self._first = encode(_FIRST)
        (start,) = decode_batch([self._first])
        texts = decode_batch([[*self._first, token] for token in range(num_tokens)])
        printed = [text.removeprefix(start).replace(_SEPARATOR, " ") for text in texts]
        self._printed = _SEPARATOR.join(printed)
        self._starts = [0]
        for text in printed:
            self._starts.append(self._starts[-1] + len(text) + 1)
        self.spellings = lru_cache(maxsize=1024)(self._spellings)

    def _spellings(self, text: str) -> Spellings:
        """The spellings of ``text``, which is not empty."""
        tokens = frozenset(self._holding(text))
        written = dict.fromkeys(tuple(self._after(before, text)) for before in _BEFORE)
        return Spellings(tokens, tuple(word for word in written if word and tokens.isdisjoint(word)))

    def _holding(self, text: str) -> list[int]:
        found, position = [], self._printed.find(text)
        while position >= 0:
            token = bisect_right(self._starts, position) - 1
            found.append(token)
            position = self._printed.find(text, self._starts[token + 1])
        return found

    def _after(self, before: str, text: str) -> list[int]:
        """The tokens of ``text`` after ``before``; they include a space in between, but not a line break."""
        ids = self._encode(before + text)
        if before != _FIRST:
            return ids
        return ids[len(self._first) :] if ids[: len(self._first)] == self._first else []
