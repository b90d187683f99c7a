"""Finding stop words: sequences of token ids, or strings across token boundaries.

Both filters below pass on what they are given, but for what may yet turn out to be the start of a stop word, so that
text which has been streamed is never taken back. ``include`` leaves the stop word itself in.
"""

from collections.abc import Sequence
from typing import Any


class StopSequenceFilter:
    """Finds stop sequences in a stream of generated token ids."""

    def __init__(self, sequences: Sequence[tuple[int, ...]], include: bool = False) -> None:
        self._sequences = sequences
        self._include = include
        self._held: list[int] = []
        self.match: tuple[int, ...] | None = None

    def push(self, token: int, armed: bool = True) -> list[int]:
        """Add a token; returns those that are certainly not part of a stop sequence.

        Sets ``match`` if a stop sequence ends with the token; one that ends while not ``armed`` is none.
        """
        self._held.append(token)
        for sequence in self._sequences if armed else ():
            if len(self._held) >= len(sequence) and tuple(self._held[len(self._held) - len(sequence) :]) == sequence:
                self.match = sequence
                released, self._held = self._held, []
                return released if self._include else released[: len(released) - len(sequence)]
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

    def __init__(self, texts: Sequence[str], include: bool = False) -> None:
        self._texts = texts
        self._include = include
        self._held = ""
        self.match: str | None = None

    def push(self, piece: str, armed: bool = True) -> str:
        """Add text; returns what is certainly not part of a stop string.

        Sets ``match`` to a stop string that the text now holds; one that is complete while not ``armed`` is none.
        """
        self._held += piece
        found = [(position, text) for text in self._texts if (position := self._held.find(text)) >= 0]
        if found and armed:
            position, self.match = min(found)
            return self._take_all()[: position + (len(self.match) if self._include else 0)]
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
