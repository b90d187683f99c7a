"""TextReader: reads a text that arrives in pieces, by steps that wait where they need more of it."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from typing import TypeVar

from trtllm_lite.serve.parsers.events import Content, Event, Reasoning, join_events
from trtllm_lite.serve.parsers.json_scanner import JsonScanner

MAX_HELD = 1 << 20
"""Most characters that are held back until it is known what they are."""
MAX_NAME = 256
"""Most characters of a function's or a parameter's name, as they are written."""
_Result = TypeVar("_Result")
Steps = Generator[None, None, _Result]
"""What reads a part of a text: it yields where it needs more, and returns what it found."""


class Fault(Exception):  # noqa: N818 -- it never leaves a reader
    """The text is not what was being read. It goes on, unread, at the place of the fault."""


class TextReader(ABC):
    """Gives the events of a text by ``_read``, which is written as if all of the text were there.

    Steps take what they read. While text is held (``_hold``), what is taken is remembered, so that it can be given back
    as content if it turns out to be none of the form; where more than MAX_HELD characters are, that is a fault too,
    but inside a call, which is as long as the model makes it.
    Only the part of the text that is not taken yet is kept, so that each character is looked at a bounded number of
    times, in pieces of any size.
    """

    def __init__(self) -> None:
        self._text, self._at, self._has_ended, self._is_cut = "", 0, False, False
        self._events: list[Event] = []
        self._kind: type[Content] | type[Reasoning] = Content  # of text that belongs to nothing else
        self._held: list[str] | None = None
        self._num_held, self._max_held = 0, MAX_HELD
        self._steps = self._read()
        next(self._steps)

    def push(self, text: str) -> list[Event]:
        """The events of the text's next piece."""
        if not text:
            return []
        self._text, self._at = self._text[self._at :] + text, 0
        next(self._steps)
        return self._made()

    def finish(self, *, is_cut: bool = False) -> list[Event]:
        """The text has ended, by itself or ``is_cut`` off: the events of what was held back."""
        self._has_ended, self._is_cut = True, is_cut
        for _ in self._steps:
            raise AssertionError("a reader waits for more of a text that has ended")
        return self._made()

    def _made(self) -> list[Event]:
        events, self._events = self._events, []
        return join_events(events) if len(events) > 1 else events

    @abstractmethod
    def _read(self) -> Steps[None]:
        """Read all of the text, up to its end and not further. It waits at first, as there is no text yet."""

    def _emit_text(self, text: str) -> None:
        """Text that belongs to nothing else."""
        if text:
            self._events.append(self._kind(text))

    # What is held back.

    def _hold(self) -> None:
        """From here on, remember what is taken."""
        self._held, self._num_held, self._max_held = [], 0, MAX_HELD

    def _let_go(self) -> None:
        """What is held is understood: forget it."""
        self._held = None

    def _give_back(self) -> None:
        """What is held, if anything is, belongs to nothing else."""
        self._emit_text(self._taken_back())

    def _taken_back(self) -> str:
        """What is held, which is forgotten."""
        held, self._held = self._held, None
        return "".join(held or [])

    def _take(self, end: int) -> str:
        """Take the text up to ``end``. Raises Fault where too much is held then, and takes as much as may be."""
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
        """The next character, which stays; nothing where the text has ended."""
        while self._at == len(self._text):
            if self._has_ended:
                return ""
            yield
        return self._text[self._at]

    def _skip(self, kind: str) -> Steps[None]:
        """Take all characters of a kind, as a regular expression writes it."""
        pattern = _run_of(kind)
        while True:
            self._take(pattern.match(self._text, self._at).end())  # type: ignore[union-attr]
            if self._at < len(self._text) or self._has_ended:
                return
            yield

    def _skip_space(self) -> Steps[None]:
        yield from self._skip(r"[ \t\n\r]")

    def _match(self, *markers: str) -> Steps[str | None]:
        """Take the first of ``markers`` that the text goes on with; None, and nothing taken, if it is none of them."""
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
        """Take the marker that must follow. Raises Fault if none does."""
        found = yield from self._match(*markers)
        if found is None:
            raise Fault
        return found

    def _word(self, kind: str) -> Steps[str]:
        """Take all characters of a kind, as a regular expression writes it. Raises Fault beyond MAX_NAME of them."""
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
        """Give the text before the first of ``markers`` to ``emit``; the marker, which stays, or None if there is none.

        The end of what has arrived is kept while it may be a marker's beginning.
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
        """Give all that follows to ``emit``; it is content if that is None."""
        while True:
            (emit or self._emit_text)(self._take(len(self._text)))
            if self._has_ended:
                return
            yield

    def _json(self, emit: Callable[[str], None], limit: int | None = None) -> Steps[None]:
        """Give a JSON value to ``emit``. Raises Fault if it is none, or has more than ``limit`` characters.

        What its strings have that JSON wants escaped is given escaped.
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
        """The string that a JSON string of at most MAX_NAME characters means. Raises Fault if it is none."""
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
    """What finds a marker, what finds a marker's beginning at the end of a text, and its greatest length."""
    whole = "|".join(map(re.escape, markers))
    beginnings = {marker[:length] for marker in markers for length in range(1, len(marker))}
    longest_first = sorted(beginnings, key=len, reverse=True)
    beginning = rf"(?:{'|'.join(map(re.escape, longest_first))}|)\Z"
    return re.compile(whole), re.compile(beginning), max(map(len, markers)) - 1
