"""Defines GlmParser: tool calls of GLM-4.5 to 4.7, in tags.

A call is ``<tool_call>NAME``, for each argument ``<arg_key>KEY</arg_key>`` and ``<arg_value>VALUE</arg_value>``, and
``</tool_call>``; up to 4.6 on lines of their own. See the chat templates of https://huggingface.co/zai-org/GLM-4.5 and
GLM-4.7, and ``tagged_values.py``.
"""

import re
from collections.abc import Iterator, Sequence
from typing import ClassVar

from trtllm_lite.runtime.session.grammar_markers import FREE
from trtllm_lite.runtime.session.guided_decoding import GuidedDecodingParams, Marker
from trtllm_lite.serve.parsers import guides
from trtllm_lite.serve.parsers.schema import Property, properties_of
from trtllm_lite.serve.parsers.tagged_values import TaggedCallParser
from trtllm_lite.serve.parsers.text_reader import Fault, Steps
from trtllm_lite.serve.parsers.tools import Tool

_BEGIN, _END = "<tool_call>", "</tool_call>"
_KEY, _KEY_END, _VALUE, _VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"


class GlmParser(TaggedCallParser):
    """Parses calls whose keys and values are in tags of their own."""

    needs_special_tokens: ClassVar[bool] = True
    _markers: ClassVar[tuple[str, ...]] = (_BEGIN,)
    _ends: ClassVar[tuple[str, ...]] = (_END,)
    _value_ends: ClassVar[tuple[str, ...]] = (_VALUE_END,)
    _following: ClassVar[tuple[str, ...]] = (_KEY, _END)
    _key: ClassVar[re.Pattern[str]] = re.compile(rf"{_KEY}([^<>\r\n]+){_KEY_END}")

    def _call(self) -> Steps[None]:
        yield from self._expect(_BEGIN)
        yield from self._skip_space()
        name = (yield from self._word(r"[^<>\r\n{}\[\]]")).strip()
        if not name:
            raise Fault
        yield from self._read_arguments(name)
        yield from self._skip_space()

    def _argument_key(self) -> Steps[str]:
        key = (yield from self._word(r"[^<>\r\n]")).strip()
        yield from self._expect(_KEY_END)
        yield from self._skip_space()
        yield from self._expect(_VALUE)
        if not key:
            raise Fault
        return key

    @classmethod
    def _grammar_of_calls(cls, tools: Sequence[Tool], *, parallel: bool) -> GuidedDecodingParams:
        """Implements ToolParser. Arguments come in the schema's order, and strings hold no ``</arg_value>``."""
        more = "(SPACE begin call)*" if parallel else ""
        return guides.of_markers([f"start: begin call {more}", *_rules(tools)], _LITERALS)

    @classmethod
    def _grammar_with_calls(cls, tools: Sequence[Tool]) -> GuidedDecodingParams:
        """Implements ToolParser."""
        return guides.of_markers(["start: (before_call call)* FREE", f"FREE: /{FREE}/", *_rules(tools)], _LITERALS)


_LITERALS = [
    *(Marker("begin", _BEGIN), Marker("end", _END), Marker("before_call", _BEGIN, is_behind_text=True)),
    *(Marker("key", _KEY), Marker("key_end", _KEY_END), Marker("value", _VALUE), Marker("value_end", _VALUE_END)),
    Marker("any_text", _VALUE_END, is_behind_text=True),
]


def _rules(tools: Sequence[Tool]) -> Iterator[str]:
    yield r"SPACE: /\n?/"
    yield "any: key /[^<>\\r\\n]+/ key_end SPACE value any_text SPACE"
    yield "call: " + " | ".join(f"call_{number}" for number in range(len(tools)))
    for number, tool in enumerate(tools):
        properties = properties_of(tool.parameters)
        arguments = "any*" if properties is None else " ".join(f"argument_{number}_{n}" for n in range(len(properties)))
        yield f"call_{number}: {guides.quoted(tool.name)} SPACE {arguments} end"
        for place, property_ in enumerate(properties or ()):
            argument = f"key {guides.quoted(property_.name)} key_end SPACE value {_value_rule(property_)} SPACE"
            either = "" if property_.is_required else ' | ""'
            yield f"argument_{number}_{place}: {argument}{either}"


def _value_rule(of: Property) -> str:
    """The rule of a value and its closing tag."""
    texts = of.schema.get("enum")
    if of.is_text and isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts):
        return "(" + " | ".join(map(guides.quoted, texts)) + ") value_end"
    if of.is_text or "string" in of.kinds:
        return "any_text"
    return f"{guides.json_rule(of.schema)} value_end"
