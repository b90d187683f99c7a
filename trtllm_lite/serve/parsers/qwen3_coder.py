"""Qwen3CoderParser: calls of Qwen3-Coder, in tags.

A call is ``<tool_call>``, ``<function=NAME>``, for each argument ``<parameter=KEY>``, its value on lines of its own and
``</parameter>``, then ``</function>`` and ``</tool_call>``. The tags around the function may be missing, as the model
sometimes leaves them out.

Nothing in a value is escaped, so that one can hold all of these tags, as when the model writes about its own form. So a
value ends only at a ``</parameter>`` which the next ``<parameter=`` or ``</function>`` follows, with nothing but space
between (of MAX_SPACE characters at most); all else belongs to the value. One line end at each of its ends does not.

Values become JSON by the types that the tool's schema has for the argument. Where that can be a string, or there is no
such argument, the value is one, and streamed as it arrives; the word ``null`` alone is no string where null is allowed.
Of other types numbers, booleans in any spelling, JSON, and Python's lists and dictionaries are understood; a value that
is none of these is a string after all, so that the client sees what the model wrote.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

from trtllm_lite.runtime.session.guided_decoding import GuidedDecodingParams
from trtllm_lite.serve.parsers import guides
from trtllm_lite.serve.parsers.json_scanner import is_json, is_number
from trtllm_lite.serve.parsers.python_literal import characters_of, literal_as_json
from trtllm_lite.serve.parsers.schema import Property, properties_of
from trtllm_lite.serve.parsers.text_reader import Fault, Steps
from trtllm_lite.serve.parsers.tool_parser import MarkedCallParser
from trtllm_lite.serve.parsers.tools import Tool, ToolChoice

MAX_SPACE = 64
"""Most characters of space between a value's end and what follows it."""
_BEGIN, _END = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_AFTER_BEGIN, _BEFORE_END = f"\n{_FUNCTION}", f"\n{_END}"
_FOLLOWING = (_PARAMETER, _FUNCTION_END)
_VALUE_ENDS = (f"\r\n{_PARAMETER_END}", f"\n{_PARAMETER_END}", _PARAMETER_END)
_SPACE = re.compile(r"[ \t\r\n]*")


class Qwen3CoderParser(MarkedCallParser):
    """Calls in tags, whose arguments become JSON by the tools' schemas."""

    _markers: ClassVar[tuple[str, ...]] = (_BEGIN, _FUNCTION)

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        self._properties = {
            tool.name: {property_.name: property_ for property_ in properties_of(tool.parameters) or ()}
            for tool in tools
        }
        super().__init__(tools)

    def _call(self) -> Steps[None]:
        if (yield from self._match(_BEGIN)) is not None:
            yield from self._skip_space()
        yield from self._expect(_FUNCTION)
        name = yield from self._name()
        yield from self._skip_space()
        following = yield from self._expect(*_FOLLOWING)
        before = "{"
        while following == _PARAMETER:
            key = yield from self._name()
            if before == "{":
                self._begin(name)
            self._emit_arguments(f'{before}"{characters_of(key)}": ')
            yield from self._value(self._properties.get(name, {}).get(key))
            following = yield from self._expect(*_FOLLOWING)
            before = ", "
        if before == "{":
            self._begin(name)
        self._emit_arguments("{}" if before == "{" else "}")
        self._end()
        yield from self._skip_space()
        yield from self._match(_END)
        yield from self._skip_space()

    def _name(self) -> Steps[str]:
        """A name, up to the end of its tag."""
        name = yield from self._word(r"[^<>\r\n]")
        yield from self._expect(">")
        if not name.strip():
            raise Fault
        return name.strip()

    def _value(self, of: Property | None) -> Steps[None]:
        """Give a value's JSON out, and take the space behind it."""
        yield from self._match("\r\n", "\n")
        if of is None or of.is_text:
            self._emit_arguments('"')
            yield from self._value_text(lambda text: self._emit_arguments(characters_of(text)))
            self._emit_arguments('"')
        else:
            pieces: list[str] = []
            self._hold()
            yield from self._value_text(pieces.append)
            self._let_go()
            self._emit_arguments(_as_json("".join(pieces), of.kinds))

    def _value_text(self, emit: Callable[[str], None]) -> Steps[None]:
        """Give a value to ``emit``, and take what ends it. Raises Fault if nothing does."""
        while (end := (yield from self._text_until(_VALUE_ENDS, emit))) is not None:
            if (yield from self._ends_value(len(end))):
                yield from self._expect(end)
                yield from self._skip_space()
                return
            emit(self._take(self._at + len(end)))
        raise Fault

    def _ends_value(self, length: int) -> Steps[bool]:
        """Whether behind a closing tag of ``length`` characters something follows that makes it one. Takes nothing."""
        while True:
            begin = self._at + length
            end = _SPACE.match(self._text, begin).end()  # type: ignore[union-attr] # it matches nothing at least
            following = self._text[end : end + len(_PARAMETER)]
            if end - begin > MAX_SPACE or not any(_agree(following, tag) for tag in _FOLLOWING):
                return False
            if following.startswith(_FOLLOWING) or self._has_ended:
                return True
            yield

    @classmethod
    def guide(cls, tools: Sequence[Tool], tool_choice: ToolChoice, *, parallel: bool) -> GuidedDecodingParams | None:
        """See ToolParser. Arguments come in the schema's order, and strings hold no ``</parameter>``."""
        required = guides.required(tools, tool_choice)
        if required is not None:
            return guides.of_rules(list(_rules(required)), len(required), separator="\n", parallel=parallel)
        if guides.has_strict(tools, tool_choice):
            functions = " | ".join(f"function_{number}" for number in range(len(tools)))
            rules = [*_rules([guides.as_strict_as(tool) for tool in tools]), f"tag_1: {functions}"]
            rules.append(f"tag_0: {guides.quoted(_AFTER_BEGIN)} tag_1 {guides.quoted(_BEFORE_END)}")
            return guides.in_free_text(rules, [_BEGIN, _FUNCTION])
        return None


def _rules(tools: Sequence[Tool]) -> Iterator[str]:
    """For each tool its call, and what follows ``<function=`` in it."""
    yield f"text[lazy]: /(?s:.*)/ {guides.quoted(_PARAMETER_END)}"
    yield f'any: {guides.quoted(_PARAMETER)} /[^<>\\r\\n]+/ ">\\n" text "\\n"'
    for number, tool in enumerate(tools):
        properties = properties_of(tool.parameters)
        arguments = "any*" if properties is None else " ".join(f"argument_{number}_{n}" for n in range(len(properties)))
        yield f"call_{number}: {guides.quoted(_BEGIN + _AFTER_BEGIN)} function_{number} {guides.quoted(_BEFORE_END)}"
        name = guides.quoted(f"{tool.name}>\n")
        yield f"function_{number}: {name} {arguments} {guides.quoted(_FUNCTION_END)}"
        for place, property_ in enumerate(properties or ()):
            begin = guides.quoted(f"{_PARAMETER}{property_.name}>\n")
            either = "" if property_.is_required else ' | ""'
            yield f'argument_{number}_{place}: {begin} {_value_rule(property_)} "\\n"{either}'


def _value_rule(of: Property) -> str:
    """A value and its closing tag."""
    texts = of.schema.get("enum")
    if of.is_text and isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts):
        return "(" + " | ".join(guides.quoted(f"{text}\n{_PARAMETER_END}") for text in texts) + ")"
    if of.is_text or "string" in of.kinds:
        return "text"
    return f"{guides.json_rule(of.schema)} {guides.quoted(_VALUE_ENDS[1])}"


def _agree(text: str, tag: str) -> bool:
    """Whether one is the beginning of the other."""
    return text.startswith(tag) or tag.startswith(text)


def _as_json(text: str, kinds: frozenset[str]) -> str:
    """The JSON that a value means which is of one of ``kinds``."""
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
