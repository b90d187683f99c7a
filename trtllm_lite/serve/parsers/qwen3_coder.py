"""Defines Qwen3CoderParser: tool calls of Qwen3-Coder, in tags.

A call is ``<tool_call>``, ``<function=NAME>``, for each argument ``<parameter=KEY>``, its value on lines of its own and
``</parameter>``, then ``</function>`` and ``</tool_call>``. The tags around the function may be missing, as the model
sometimes leaves them out. One line end at each end of a value does not belong to it; see ``tagged_values.py``.
"""

import re
from collections.abc import Iterator, Sequence
from typing import ClassVar

from trtllm_lite.runtime.session.guided_decoding import GuidedDecodingParams
from trtllm_lite.serve.parsers import guides
from trtllm_lite.serve.parsers.schema import Property, properties_of
from trtllm_lite.serve.parsers.tagged_values import TaggedCallParser
from trtllm_lite.serve.parsers.text_reader import Fault, Steps
from trtllm_lite.serve.parsers.tools import Tool

_BEGIN, _END = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_AFTER_BEGIN, _BEFORE_END = f"\n{_FUNCTION}", f"\n{_END}"
_VALUE_END = f"\n{_PARAMETER_END}"


class Qwen3CoderParser(TaggedCallParser):
    """Parses calls in tags; their arguments become JSON by the tools' schemas."""

    _markers: ClassVar[tuple[str, ...]] = (_BEGIN, _FUNCTION)
    _ends: ClassVar[tuple[str, ...]] = (_END,)
    _value_ends: ClassVar[tuple[str, ...]] = (f"\r{_VALUE_END}", _VALUE_END, _PARAMETER_END)
    _following: ClassVar[tuple[str, ...]] = (_PARAMETER, _FUNCTION_END, _END)
    _key: ClassVar[re.Pattern[str]] = re.compile(rf"{_PARAMETER}([^<>\r\n]+)>")

    def _call(self) -> Steps[None]:
        if (yield from self._match(_BEGIN)) is not None:
            yield from self._skip_space()
        yield from self._expect(_FUNCTION)
        yield from self._read_arguments((yield from self._name()))
        yield from self._skip_space()
        yield from self._match(_END)
        yield from self._skip_space()

    def _argument_key(self) -> Steps[str]:
        key = yield from self._name()
        yield from self._match("\r\n", "\n")
        return key

    def _name(self) -> Steps[str]:
        """Read a name, up to the end of its tag."""
        name = yield from self._word(r"[^<>\r\n]")
        yield from self._expect(">")
        if not name.strip():
            raise Fault
        return name.strip()

    @classmethod
    def _grammar_of_calls(cls, tools: Sequence[Tool], *, parallel: bool) -> GuidedDecodingParams:
        """Implements ToolParser. Arguments come in the schema's order, and strings hold no ``</parameter>``."""
        return guides.of_rules(list(_rules(tools)), len(tools), separator="\n", parallel=parallel)

    @classmethod
    def _grammar_with_calls(cls, tools: Sequence[Tool]) -> GuidedDecodingParams:
        """Implements ToolParser."""
        functions = " | ".join(f"function_{number}" for number in range(len(tools)))
        rules = [*_rules(tools), f"tag_1: {functions}"]
        rules.append(f"tag_0: {guides.quoted(_AFTER_BEGIN)} tag_1 {guides.quoted(_BEFORE_END)}")
        return guides.in_free_text(rules, [_BEGIN, _FUNCTION])


def _rules(tools: Sequence[Tool]) -> Iterator[str]:
    """For each tool, the rule of its call, and the rule of what follows ``<function=`` in it."""
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
    """The rule of a value and its closing tag."""
    texts = of.schema.get("enum")
    if of.is_text and isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts):
        return "(" + " | ".join(guides.quoted(f"{text}\n{_PARAMETER_END}") for text in texts) + ")"
    if of.is_text or "string" in of.kinds:
        return "text"
    return f"{guides.json_rule(of.schema)} {guides.quoted(_VALUE_END)}"
