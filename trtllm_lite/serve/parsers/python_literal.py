"""Converts literals of Python to JSON, without Python's parser."""

import json
import math
import re
from collections.abc import Callable

from trtllm_lite.serve.parsers.json_scanner import MAX_DEPTH, is_number
from trtllm_lite.serve.parsers.text_reader import Fault, Steps, TextReader

_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_FLOAT = re.compile(r"-?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_PLAIN = re.compile(r"[^\"'\\]*")
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\n": ""}
_ESCAPES |= {same: same for same in "\\'\""}
_NUM_DIGITS = {"x": 2, "u": 4, "U": 8}


class LiteralReader(TextReader):
    """Steps that read a literal: strings, numbers, True, False, None (or JSON's words for these), lists, dictionaries.

    Keys are strings; lists and dictionaries nest at most MAX_DEPTH deep. A string may contain line ends.
    """

    def _literal(self, emit: Callable[[str], None], depth: int = 0) -> Steps[None]:
        """Give a literal's JSON to ``emit`` as it arrives. Raises Fault if the text is no literal."""
        first = yield from self._peek()
        if first in ("'", '"'):
            yield from self._string(emit)
        elif first in ("[", "{"):
            if depth == MAX_DEPTH:
                raise Fault
            self._take(self._at + 1)
            yield from self._items(emit, first, depth + 1)
        else:
            emit(_scalar((yield from self._word(r"[\w.+-]"))))

    def _items(self, emit: Callable[[str], None], bracket: str, depth: int) -> Steps[None]:
        emit(bracket)
        end = "]" if bracket == "[" else "}"
        separator = ""
        while True:
            yield from self._skip_space()
            if (yield from self._match(end)) is not None:
                break
            emit(separator)
            if bracket == "{":
                yield from self._key(emit)
            yield from self._literal(emit, depth)
            yield from self._skip_space()
            if (yield from self._expect(",", end)) == end:
                break
            separator = ", "
        emit(end)

    def _key(self, emit: Callable[[str], None]) -> Steps[None]:
        if (yield from self._peek()) not in ("'", '"'):
            raise Fault
        yield from self._string(emit)
        yield from self._skip_space()
        yield from self._expect(":")
        emit(": ")
        yield from self._skip_space()

    def _string(self, emit: Callable[[str], None]) -> Steps[None]:
        quote = yield from self._expect('"""', "'''", '"', "'")
        emit('"')
        while (yield from self._match(quote)) is None:
            taken = self._take(_PLAIN.match(self._text, self._at).end())  # type: ignore[union-attr]
            if taken:
                emit(characters_of(taken))
            elif (yield from self._peek()) == "\\":
                yield from self._escape(emit)
            else:  # a quote of the other kind, or fewer quotes than end the string
                yield from self._more_than_nothing(emit)
        emit('"')

    def _more_than_nothing(self, emit: Callable[[str], None]) -> Steps[None]:
        if not (yield from self._peek()):
            raise Fault
        emit(characters_of(self._take(self._at + 1)))

    def _escape(self, emit: Callable[[str], None]) -> Steps[None]:
        yield from self._expect("\\")
        kind = yield from self._peek()
        if not kind or kind == "N":
            raise Fault
        if kind in "01234567":
            emit(characters_of(chr(int((yield from self._digits("[0-7]", 3)), 8))))
            return
        self._take(self._at + 1)
        if kind in _NUM_DIGITS:
            digits = yield from self._digits("[0-9a-fA-F]", _NUM_DIGITS[kind])
            if len(digits) < _NUM_DIGITS[kind] or int(digits, 16) > 0x10FFFF:
                raise Fault
            emit(json.dumps(chr(int(digits, 16)))[1:-1])  # escaped, as half a surrogate pair may be written in this way
        else:
            emit(characters_of(_ESCAPES.get(kind, f"\\{kind}")))

    def _digits(self, kind: str, most: int) -> Steps[str]:
        pattern, digits = re.compile(kind), ""
        while len(digits) < most and pattern.match((yield from self._peek())):
            digits += self._take(self._at + 1)
        return digits


class _OneLiteral(LiteralReader):
    """Reads a text that is one literal; anything else is content."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.is_whole = False
        super().__init__()

    def _read(self) -> Steps[None]:
        try:
            yield from self._skip_space()
            yield from self._literal(self.pieces.append)
            yield from self._skip_space()
            self.is_whole = True
        except Fault:
            pass
        yield from self._rest()


def literal_as_json(text: str) -> str | None:
    """The JSON of a text that is one literal of Python; None for other texts."""
    reader = _OneLiteral()
    has_rest = bool(reader.push(text) + reader.finish())
    return "".join(reader.pieces) if reader.is_whole and not has_rest else None


def characters_of(text: str) -> str:
    """``text`` as it is written between the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _scalar(word: str) -> str:
    if word in _WORDS:
        return _WORDS[word]
    if is_number(word):
        return word
    if _FLOAT.fullmatch(word) and math.isfinite(float(word)):
        return repr(float(word))
    raise Fault
