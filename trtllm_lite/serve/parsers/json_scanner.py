"""Defines JsonScanner: finds the end of a JSON value in a text that arrives in pieces."""

import json
import re
from collections.abc import Callable

MAX_DEPTH = 64
"""Deepest nesting of arrays and objects in a value."""
_SPACE = re.compile(r"[ \t\n\r]*")
_CHARACTERS = re.compile(r'[^"\\\x00-\x1f]*')
_LITERALS = {"t": "true", "f": "false", "n": "null"}
_WHOLE_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
# The next state of a number, by state and kind of character: "0" is the digit 0, "1" any digit from 1 to 9.
_NUMBER = {
    "start": {"-": "minus", "0": "zero", "1": "whole"},
    "minus": {"0": "zero", "1": "whole"},
    "zero": {".": "point", "e": "exponent"},
    "whole": {"0": "whole", "1": "whole", ".": "point", "e": "exponent"},
    "point": {"0": "fraction", "1": "fraction"},
    "fraction": {"0": "fraction", "1": "fraction", "e": "exponent"},
    "exponent": {"+": "sign", "-": "sign", "0": "power", "1": "power"},
    "sign": {"0": "power", "1": "power"},
    "power": {"0": "power", "1": "power"},
}
_NUMBER_ENDS = {"zero", "whole", "fraction", "power"}
_NUMBER_KINDS = {**dict.fromkeys("123456789", "1"), "E": "e"}


class JsonScanner:
    """Reads one JSON value (RFC 8259), with space before it. A number ends when the character after it is read.

    ``is_done``: the value has ended. ``is_faulty``: the last character cannot continue a JSON value, or nests deeper
    than MAX_DEPTH. ``closable_at``: the last position in the last scanned text at which appending ``closing`` to all
    text up to there makes a complete value; -1 if there is none (an opening bracket alone is none). The scanner keeps
    no text, and reads each character once.
    """

    def __init__(self) -> None:
        self.is_done = self.is_faulty = False
        self.closable_at = -1
        self._num_closable = 0  # brackets that are open at the closable position
        self._brackets: list[str] = []
        self._state: _State = JsonScanner._value
        self._rest = ""  # the rest of a literal, or of an escape
        self._number = "start"
        self._is_key = False  # whether the current string is a key

    def scan(self, text: str, at: int) -> int:
        """Read ``text`` from ``at``; returns where the value continues, ends, or turns out to be faulty."""
        self.closable_at = -1
        while at < len(text) and not self.is_done and not self.is_faulty:
            at = self._state(self, text, at)
            if not self._is_key and not self.is_faulty and self._state in _CLOSABLE:
                self.closable_at, self._num_closable = at, len(self._brackets)
        return at

    @property
    def closing(self) -> str:
        """The text that closes the string and the brackets that are open at the last closable position."""
        quote = '"' if self._state in _STRING and not self._is_key else ""
        return quote + "".join(
            "}" if bracket == "{" else "]" for bracket in reversed(self._brackets[: self._num_closable])
        )

    def mend(self, character: str) -> str | None:
        """Continue after a faulty ``character`` in a string whose meaning is clear: returns the text for its place.

        Characters that JSON requires to be escaped are escaped, and so is a backslash that begins no escape. The result
        is None for other faults.
        """
        if self._state not in (JsonScanner._string, JsonScanner._escape):
            return None
        before = "\\" if self._state is JsonScanner._escape else ""
        self.is_faulty, self._state = False, JsonScanner._string
        return before + json.dumps(character, ensure_ascii=False)[1:-1]

    def _value(self, text: str, at: int) -> int:
        at = _space(text, at)
        if at == len(text):
            return at
        return self._begin_value(text[at], at)

    def _begin_value(self, first: str, at: int) -> int:
        if first == '"':
            self._state = JsonScanner._string
        elif first in "{[":
            if len(self._brackets) == MAX_DEPTH:
                return self._fault(at)
            self._brackets.append(first)
            self._state = JsonScanner._first_key if first == "{" else JsonScanner._first_item
        elif first in _LITERALS:
            self._rest, self._state = _LITERALS[first][1:], JsonScanner._literal
        elif first in "-0123456789":
            self._number, self._state = "start", JsonScanner._digits
            return at
        else:
            return self._fault(at)
        return at + 1

    def _string(self, text: str, at: int) -> int:
        begin, at = at, _CHARACTERS.match(text, at).end()  # type: ignore[union-attr] # it matches at least nothing
        if at == len(text):
            return at
        if text[at] == "\\":
            if at > begin:
                return at  # the string can be closed here
            self._state = JsonScanner._escape
        elif text[at] != '"':
            return self._fault(at)
        elif self._is_key:
            self._is_key, self._state = False, JsonScanner._colon
        else:
            self._end_value()
        return at + 1

    def _escape(self, text: str, at: int) -> int:
        if text[at] == "u":
            self._rest, self._state = "xxxx", JsonScanner._hexadecimal
        elif text[at] in '"\\/bfnrt':
            self._state = JsonScanner._string
        else:
            return self._fault(at)
        return at + 1

    def _hexadecimal(self, text: str, at: int) -> int:
        if text[at] not in "0123456789abcdefABCDEF":
            return self._fault(at)
        self._rest = self._rest[1:]
        if not self._rest:
            self._state = JsonScanner._string
        return at + 1

    def _literal(self, text: str, at: int) -> int:
        if text[at] != self._rest[0]:
            return self._fault(at)
        self._rest = self._rest[1:]
        if not self._rest:
            self._end_value()
        return at + 1

    def _digits(self, text: str, at: int) -> int:
        following = _NUMBER[self._number].get(_NUMBER_KINDS.get(text[at], text[at]))
        if following is not None:
            self._number = following
            return at + 1
        if self._number not in _NUMBER_ENDS:
            return self._fault(at)
        self._end_value()
        return at

    def _first_key(self, text: str, at: int) -> int:
        return self._key_or(text, at, "}")

    def _key(self, text: str, at: int) -> int:
        return self._key_or(text, at, "")

    def _key_or(self, text: str, at: int, end: str) -> int:
        at = _space(text, at)
        if at == len(text):
            return at
        if text[at] == end:
            self._end_bracket()
        elif text[at] == '"':
            self._is_key, self._state = True, JsonScanner._string
        else:
            return self._fault(at)
        return at + 1

    def _colon(self, text: str, at: int) -> int:
        at = _space(text, at)
        if at == len(text):
            return at
        if text[at] != ":":
            return self._fault(at)
        self._state = JsonScanner._value
        return at + 1

    def _first_item(self, text: str, at: int) -> int:
        at = _space(text, at)
        if at == len(text):
            return at
        if text[at] != "]":
            return self._begin_value(text[at], at)
        self._end_bracket()
        return at + 1

    def _separator(self, text: str, at: int) -> int:
        begin, at = at, _space(text, at)
        if at == len(text) or at > begin:
            return at  # the value can be closed here
        is_object = self._brackets[-1] == "{"
        if text[at] == ",":
            self._state = JsonScanner._key if is_object else JsonScanner._value
        elif text[at] == ("}" if is_object else "]"):
            self._end_bracket()
        else:
            return self._fault(at)
        return at + 1

    def _end_bracket(self) -> None:
        self._brackets.pop()
        self._end_value()

    def _end_value(self) -> None:
        self.is_done = not self._brackets
        self._state = JsonScanner._separator

    def _fault(self, at: int) -> int:
        self.is_faulty = True
        return at


_State = Callable[[JsonScanner, str, int], int]
# States in which brackets, and a quote in a string, complete the value.
_CLOSABLE = frozenset({JsonScanner._string, JsonScanner._separator})
_STRING = frozenset({JsonScanner._string, JsonScanner._escape, JsonScanner._hexadecimal})


def _space(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # type: ignore[union-attr] # it matches at least nothing


def is_json(text: str) -> bool:
    """Whether a text is exactly one JSON value, possibly with space around it."""
    scanner, text = JsonScanner(), f"{text} "
    end = scanner.scan(text, 0)
    return scanner.is_done and _space(text, end) == len(text)


def is_number(text: str) -> bool:
    """Whether a text is exactly one JSON number."""
    return _WHOLE_NUMBER.fullmatch(text) is not None
