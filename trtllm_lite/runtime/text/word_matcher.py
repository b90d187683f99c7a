"""Finds any of several words in a stream, in a time that depends on neither their number nor their lengths."""

from collections import deque
from collections.abc import Hashable, Sequence


class WordMatcher:
    """The automaton of Aho and Corasick (Efficient string matching, 1975) over characters or token ids.

    A state stands for the longest end of the stream that is the start of a word; :data:`START` means that there is
    none.
    """

    START = 0

    def __init__(self, words: Sequence[Sequence[Hashable]]) -> None:
        self._next: list[dict[Hashable, int]] = [{}]
        self._shorter = [0]  # for each state the next shorter end of the stream that is the start of a word
        self.depth = [0]
        """By state: how long that end of the stream is."""
        self.found: list[Sequence[Hashable] | None] = [None]
        """By state: the longest word that the stream ends with, or None."""
        for word in words:
            self._add(word)
        self._link()

    def after(self, state: int, symbol: Hashable) -> int:
        """The state that follows ``state`` when ``symbol`` comes."""
        while symbol not in self._next[state]:
            if state == self.START:
                return self.START
            state = self._shorter[state]
        return self._next[state][symbol]

    def unfinished(self, state: int) -> int:
        """The longest end of the stream that may still become a word: ``state``, or the next shorter one.

        The shorter one is taken if ``state`` is a whole word that no longer word continues.
        """
        while not self._next[state] and state != self.START:
            state = self._shorter[state]
        return state

    def _add(self, word: Sequence[Hashable]) -> None:
        state = self.START
        for symbol in word:
            if symbol not in self._next[state]:
                self._next[state][symbol] = len(self._next)
                self._next.append({})
                self._shorter.append(self.START)
                self.depth.append(self.depth[state] + 1)
                self.found.append(None)
            state = self._next[state][symbol]
        self.found[state] = word

    def _link(self) -> None:
        """Link the states breadth first, because a state's link is found by the links of shorter states."""
        queue = deque(self._next[self.START].values())
        while queue:
            state = queue.popleft()
            if self.found[state] is None:
                self.found[state] = self.found[self._shorter[state]]
            for symbol, child in self._next[state].items():
                self._shorter[child] = self.after(self._shorter[state], symbol)
                queue.append(child)
