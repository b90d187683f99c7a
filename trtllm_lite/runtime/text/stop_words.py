"""Finds stop words in a stream: sequences of token ids, or strings across token boundaries."""

from typing import Any, Generic, TypeVar

from trtllm_lite.runtime.text.word_matcher import WordMatcher

Stream = TypeVar("Stream", str, list[int])


class StopFilter(Generic[Stream]):
    """Passes on a stream up to the first stop word, and holds back what may yet turn out to be the start of one.

    Text that has been streamed is therefore never taken back. ``nothing`` is an empty piece of the stream; with
    ``include`` the stop word itself is passed on, too.
    """

    def __init__(self, words: WordMatcher, nothing: Stream, include: bool = False) -> None:
        self._words = words
        self._nothing: Stream = nothing
        self._include = include
        self._state = WordMatcher.START
        self._held: Stream = nothing
        self.match: Any = None
        """The stop word that has ended the stream: of several that end at one place the longest."""

    def push(self, piece: Stream, armed: bool = True) -> Stream:
        """Add a piece; returns what is certainly not part of a stop word.

        Sets ``match`` if a stop word ends in the piece, unless it is not ``armed``: then stop words are ignored.
        """
        self._held = self._held + piece
        start = len(self._held) - len(piece)
        for end, symbol in enumerate(piece, start + 1):
            self._state = self._words.after(self._state, symbol)
            word = self._words.found[self._state]
            if word is not None and armed:
                self.match = word
                return self.finish()[: end if self._include else end - len(word)]
        self._state = self._words.unfinished(self._state)
        keep = len(self._held) - self._words.depth[self._state]
        released, self._held = self._held[:keep], self._held[keep:]
        return released

    def finish(self) -> Stream:
        """The text or tokens still held back, when generation ended inside a possible stop word."""
        released, self._held = self._held, self._nothing
        return released
