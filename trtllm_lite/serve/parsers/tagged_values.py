"""Defines TaggedCallParser: the common part of parsers of calls whose arguments are keys and values in tags.

Values are not escaped, so a value can contain all tags of the format, for example when the model writes about its own
format. Therefore a value ends only at a closing tag that is followed by the next argument or the call's end, with at
most MAX_SPACE characters of space between; any other closing tag belongs to the value. Models also leave closing tags
out: a non-empty value also ends where an argument of the tool begins that was not given yet, and whose own value ends
as values do (within MAX_AHEAD characters; a longer value is assumed to end).

Values become JSON by the types that the tool's schema has for the argument. If the type may be a string, or the
argument is unknown, the value is a string, streamed as it arrives; only the word ``null`` becomes null if null is
allowed. For other types numbers, booleans in any spelling, JSON, and Python's lists and dictionaries are recognised;
any other value becomes a string, so that the client sees what the model wrote.
"""

import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

from trtllm_lite.serve.parsers.json_scanner import is_json, is_number
from trtllm_lite.serve.parsers.python_literal import characters_of, literal_as_json
from trtllm_lite.serve.parsers.schema import Property, properties_of
from trtllm_lite.serve.parsers.text_reader import MAX_HELD, MAX_NAME, Fault, Steps
from trtllm_lite.serve.parsers.tool_parser import MarkedCallParser
from trtllm_lite.serve.parsers.tools import Tool

MAX_SPACE = 64
"""The maximum number of characters of space between the end of a value and what follows it."""
MAX_AHEAD = 1024
"""The maximum number of characters that are read ahead to tell whether an argument begins or a value continues."""
_SPACE = re.compile(r"[ \t\r\n]*")


class TaggedCallParser(MarkedCallParser):
    """Reads arguments in tags, which become JSON by the tools' schemas."""

    _value_ends: ClassVar[tuple[str, ...]]
    """Texts that close a value, the longest first; space in them is dropped."""
    _following: ClassVar[tuple[str, ...]]
    """Texts that may follow a value: the next argument's beginning, and the end of the call."""
    _key: ClassVar[re.Pattern[str]]
    """An argument's beginning up to its value; the group is its key."""

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        self._properties = {
            tool.name: {property_.name: property_ for property_ in properties_of(tool.parameters) or ()}
            for tool in tools
        }
        self._open: set[str] = set()  # arguments of the tool that were not given yet
        begin = self._following[0]
        self._value_markers = (*self._value_ends, *(f"{line_end}{begin}" for line_end in ("\r\n", "\n", "")))
        super().__init__(tools)

    @abstractmethod
    def _argument_key(self) -> Steps[str]:
        """Read an argument's key, after the first of ``_following``, up to its value."""

    def _read_arguments(self, name: str) -> Steps[None]:
        """Read the arguments of a call that begins, up to its end. Raises Fault if it has no end."""
        properties = self._properties.get(name, {})
        self._open = set(properties)
        yield from self._skip_space()
        before = "{"
        following: str | None = yield from self._expect(*self._following)
        while following == self._following[0]:
            key = yield from self._argument_key()
            if before == "{":
                self._begin(name)
            self._open.discard(key)
            self._emit_arguments(f'{before}"{characters_of(key)}": ')
            yield from self._value(properties.get(key))
            following = yield from self._behind_value()
            before = ", "
        if before == "{":
            self._begin(name)
        self._emit_arguments("{}" if before == "{" else "}")
        self._end()

    def _behind_value(self) -> Steps[str | None]:
        """The marker that follows a value; the call's end may be missing if the text ends by itself."""
        if (yield from self._peek()) == "" and not self._is_cut:
            return None
        return (yield from self._expect(*self._following))

    def _value(self, of: Property | None) -> Steps[None]:
        """Emit a value's JSON, and take the space after it."""
        if of is None or of.is_text:
            self._emit_arguments('"')
            yield from self._value_text(lambda text: self._emit_arguments(characters_of(text)))
            self._emit_arguments('"')
            return
        pieces: list[str] = []
        num_read = 0

        def keep(text: str) -> None:
            nonlocal num_read
            num_read += len(text)
            if num_read > MAX_HELD:
                raise Fault
            pieces.append(text)

        yield from self._value_text(keep)
        self._emit_arguments(_as_json("".join(pieces), of.kinds))

    def _value_text(self, emit: Callable[[str], None]) -> Steps[None]:
        """Give a value to ``emit``, and take the tag that ends it. Raises Fault if none does."""
        num_read = 0

        def counted(text: str) -> None:
            nonlocal num_read
            num_read += len(text)
            if text:
                emit(text)

        while (marker := (yield from self._text_until(self._value_markers, counted))) is not None:
            if marker in self._value_ends:
                is_end = yield from self._ends_value(len(marker))
            else:
                is_end = num_read > 0 and (yield from self._begins_argument())
            if is_end:
                if marker in self._value_ends:
                    yield from self._expect(marker)
                yield from self._skip_space()
                return
            counted(self._take(self._at + len(marker)))
        raise Fault

    def _ends_value(self, ahead: int) -> Steps[bool]:
        """Whether a closing tag at ``ahead`` characters from here is confirmed by what follows. Takes nothing."""
        longest = max(map(len, self._following))
        while True:
            begin = self._at + ahead
            end = _SPACE.match(self._text, begin).end()  # type: ignore[union-attr] # it matches at least nothing
            following = self._text[end : end + longest]
            if end - begin > MAX_SPACE or not any(_agree(following, tag) for tag in self._following):
                return False
            if following.startswith(self._following) or self._has_ended:
                return True
            yield

    def _begins_argument(self) -> Steps[bool]:
        """Whether an argument begins here, which means that the end of the previous one is missing. Takes nothing."""
        end_tag = self._value_ends[-1]
        while True:
            ahead = self._text[self._at : self._at + MAX_AHEAD].lstrip("\r\n")
            key = self._key.match(ahead)
            if key is not None and key[1].strip() not in self._open:
                return False
            if key is None and (len(ahead) > len(self._following[0]) + MAX_NAME or self._has_ended):
                return False
            place = ahead.find(end_tag)
            if key is not None and place >= 0:
                skipped = len(self._text[self._at : self._at + MAX_AHEAD]) - len(ahead)
                return (yield from self._ends_value(skipped + place + len(end_tag)))
            if len(self._text) - self._at >= MAX_AHEAD:
                return key is not None
            if self._has_ended:
                return False
            yield


def _agree(text: str, tag: str) -> bool:
    """Whether one text is the beginning of the other."""
    return text.startswith(tag) or tag.startswith(text)


def _as_json(text: str, kinds: frozenset[str]) -> str:
    """The JSON of a value that is of one of the types ``kinds``."""
    value, word = text.strip(), text.strip().lower()
    if "null" in kinds and word in ("null", "none"):
        return "null"
    if "string" not in kinds:
        if "boolean" in kinds and word in ("true", "false"):
            return word
        if kinds & {"integer", "number"} and is_number(value):
            return value
        if kinds & {"object", "array"} and value.startswith(("{", "[")):
            return value if is_json(value) else literal_as_json(value) or f'"{characters_of(text)}"'
    return f'"{characters_of(text)}"'
