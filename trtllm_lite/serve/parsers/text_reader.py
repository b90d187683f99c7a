"""Defines TextReader: reads a text that arrives in pieces, by steps that wait when they need more of it."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from typing import TypeVar

from trtllm_lite.serve.parsers.events import Content, Event, Reasoning, join_events
from trtllm_lite.serve.parsers.json_scanner import JsonScanner

MAX_HELD = 1 << 20
"""The maximum number of characters that are held back until their meaning is known."""
MAX_NAME = 256
"""The maximum number of characters of a function's or a parameter's name, as they are written."""
_Result = TypeVar("_Result")
Steps = Generator[None, None, _Result]
"""A generator that reads a part of a text: it yields when it needs more, and returns its result."""


class Fault(Exception):  # noqa: N818 -- it never leaves a reader
    """The text does not have the expected format. Reading goes on at the place of the fault."""


class TextReader(ABC):
    """Gives the events of a text by ``_read``, which is written as if all of the text were there.

    ``_read`` consists of :data:`Steps`, which take the text that they read from the front. Only text not yet taken is
    kept, so that each character is read a bounded number of times, in pieces of any size. From ``_hold`` on, taken text
    is remembered, to be returned as content if it turns out not to have the format. More than MAX_HELD remembered
    characters are a fault as well, except inside a call, whose length is not bounded.
    """

    def __init__(self) -> None:
        self._text, self._at, self._has_ended, self._is_cut = "", 0, False, False
        self._events: list[Event] = []
        self._kind: type[Content] | type[Reasoning] = Content  # the kind of text that belongs to no other event
        self._held: list[str] | None = None
        self._num_held, self._max_held = 0, MAX_HELD
        self._steps = self._read()
        next(self._steps)

    def push(self, text: str) -> list[Event]:
        """Return the events of the text's next piece."""
        if not text:
            return []
        self._text, self._at = self._text[self._at :] + text, 0
        next(self._steps)
        return self._made()

    def finish(self, *, is_cut: bool = False) -> list[Event]:
        """Return the events of held text, when the text has ended, by itself or ``is_cut`` off."""
        self._has_ended, self._is_cut = True, is_cut
        for _ in self._steps:
            raise AssertionError("a reader waits for more of a text that has ended")
        return self._made()

    def _made(self) -> list[Event]:
        events, self._events = self._events, []
        return join_events(events) if len(events) > 1 else events

    @abstractmethod
    def _read(self) -> Steps[None]:
        """Read the whole text, exactly up to its end. It waits at first, as there is no text yet."""

    def _emit_text(self, text: str) -> None:
        """Emit text that belongs to no other event."""
        if text:
            self._events.append(self._kind(text))

    # Held text.

    def _hold(self) -> None:
        """Begin to remember the text that is taken."""
        self._held, self._num_held, self._max_held = [], 0, MAX_HELD

    def _let_go(self) -> None:
        """Forget the held text, whose meaning is known."""
        self._held = None

    def _give_back(self) -> None:
        """Emit the held text, if any, as text that belongs to no other event."""
        self._emit_text(self._taken_back())

    def _taken_back(self) -> str:
        """Return the held text, and forget it."""
        held, self._held = self._held, None
        return "".join(held or [])

    def _take(self, end: int) -> str:
        """Take the text up to ``end``. If too much is held then, takes as much as fits and raises Fault."""
        allowed = end
        if self._held is not None:
            allowed = min(end, self._at + self._max_held - self._num_held)
            self._held.append(self._text[self._at : allowed])
            self._num_held += allowed - self._at
        taken, self._at = self._text[self._at : allowed], allowed
        if allowed < end:
            raise Fault
        return taken

    # Steps.

    def _more(self) -> Steps[None]:
        """Wait for more text. Raises Fault if it has ended."""
        if self._has_ended:
            raise Fault
        yield

    def _peek(self) -> Steps[str]:
        """The next character, which is not taken; empty if the text has ended."""
        while self._at == len(self._text):
            if self._has_ended:
                return ""
            yield
        return self._text[self._at]

    def _skip(self, kind: str) -> Steps[None]:
        """Take all characters of a kind, given as a regular expression."""
        pattern = _run_of(kind)
        while True:
            self._take(pattern.match(self._text, self._at).end())  # type: ignore[union-attr]
            if self._at < len(self._text) or self._has_ended:
                return
            yield

    def _skip_space(self) -> Steps[None]:
        yield from self._skip(r"[ \t\n\r]")

    def _match(self, *markers: str) -> Steps[str | None]:
        """Take the first of ``markers`` that the text continues with; None, with nothing taken, if there is none."""
        longest = max(map(len, markers))
        while True:
            following = self._text[self._at : self._at + longest]
            for marker in markers:
                if following.startswith(marker):
                    return self._take(self._at + len(marker))
                if marker.startswith(following) and not self._has_ended:
                    break
            else:
                return None
            yield

    def _expect(self, *markers: str) -> Steps[str]:
        """Take the marker that has to follow. Raises Fault if it does not."""
        found = yield from self._match(*markers)
        if found is None:
            raise Fault
        return found

    def _word(self, kind: str) -> Steps[str]:
        """Take all characters of a kind, given as a regular expression. Raises Fault after MAX_NAME characters."""
        pattern, taken = _run_of(kind), ""
        while True:
            end = pattern.match(self._text, self._at).end()  # type: ignore[union-attr]
            allowed = min(end, self._at + MAX_NAME - len(taken))
            taken += self._take(allowed)
            if allowed < end:
                raise Fault
            if self._at < len(self._text) or self._has_ended:
                return taken
            yield

    def _text_until(self, markers: Sequence[str], emit: Callable[[str], None]) -> Steps[str | None]:
        """Give the text before the first of ``markers`` to ``emit``; returns the marker, which is not taken, or None.

        The end of the arrived text is kept while it may be the beginning of a marker.
        """
        whole, beginning, longest = _patterns(tuple(markers))
        while True:
            found = whole.search(self._text, self._at)
            if found is not None:
                emit(self._take(found.start()))
                return found[0]
            end = len(self._text)
            if not self._has_ended:
                end = beginning.search(self._text, max(self._at, end - longest)).start()  # type: ignore[union-attr]
            if end > self._at:
                emit(self._take(end))
            if self._has_ended:
                return None
            yield

    def _rest(self, emit: Callable[[str], None] | None = None) -> Steps[None]:
        """Give all text that follows to ``emit``; it is content if ``emit`` is None."""
        while True:
            (emit or self._emit_text)(self._take(len(self._text)))
            if self._has_ended:
                return
            yield

    def _json(self, emit: Callable[[str], None], limit: int | None = None) -> Steps[None]:
        """Give a JSON value to ``emit``. Raises Fault for invalid JSON, or after more than ``limit`` characters.

        Characters in strings that JSON requires to be escaped are emitted escaped.
        """
        scanner, num_read = JsonScanner(), 0
        while True:
            end = scanner.scan(self._text, self._at)
            allowed = end if limit is None else min(end, self._at + limit - num_read)
            taken = self._take(allowed)
            num_read += len(taken)
            if taken:
                emit(taken)
            if allowed < end:
                raise Fault
            if scanner.is_faulty:
                mended = scanner.mend(self._text[self._at])
                if mended is None:
                    raise Fault
                self._take(self._at + 1)
                emit(mended)
            elif scanner.is_done:
                return
            else:
                yield from self._more()

    def _json_string(self) -> Steps[str]:
        """The value of a JSON string of at most MAX_NAME characters. Raises Fault for anything else."""
        if (yield from self._peek()) != '"':
            raise Fault
        taken: list[str] = []
        yield from self._json(taken.append, limit=MAX_NAME)
        text = json.loads("".join(taken))
        if _SURROGATE.search(text):
            raise Fault
        return str(text)


_SURROGATE = re.compile("[\ud800-\udfff]")


@lru_cache
def _run_of(kind: str) -> re.Pattern[str]:
    return re.compile(f"{kind}*")


@lru_cache
def _patterns(markers: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str], int]:
    """The pattern of a marker, that of a marker's beginning at the end of a text, and the length of the longest."""
    whole = "|".join(map(re.escape, markers))
    beginnings = {marker[:length] for marker in markers for length in range(1, len(marker))}
    longest_first = sorted(beginnings, key=len, reverse=True)
    beginning = rf"(?:{'|'.join(map(re.escape, longest_first))}|)\Z"
    return re.compile(whole), re.compile(beginning), max(map(len, markers)) - 1
