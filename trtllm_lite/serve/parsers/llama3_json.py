"""Defines Llama3JsonParser: tool calls of Llama 3.1 to 3.3.

A text that calls is one JSON object with ``name`` and ``parameters``, or several with semicolons between them, at its
very beginning or after ``<|python_tag|>``. An object without both keys is content, since it may be the answer.
"""

import json
from collections.abc import Iterator, Sequence
from typing import ClassVar

from trtllm_lite.runtime.session.guided_decoding import GuidedDecodingParams
from trtllm_lite.serve.parsers import guides
from trtllm_lite.serve.parsers.text_reader import Steps
from trtllm_lite.serve.parsers.tool_parser import MarkedCallParser
from trtllm_lite.serve.parsers.tools import Tool

_TAG = "<|python_tag|>"
# A text without calls does not begin with these, so that no call escapes its schema by another spelling.
_CALL_BEGINS = r'\s*\{\s*"(name|type|parameters|arguments|function)"'


class Llama3JsonParser(MarkedCallParser):
    """Parses calls that are JSON objects, at the beginning of the text or after a special token."""

    needs_special_tokens: ClassVar[bool] = True
    _markers: ClassVar[tuple[str, ...]] = (_TAG,)

    def _read(self) -> Steps[None]:
        yield from self._try(self._call())
        yield from super()._read()

    def _call(self) -> Steps[None]:
        yield from self._skip_space()
        yield from self._match(_TAG)
        separator: str | None = ";"
        while separator is not None:
            yield from self._skip_space()
            yield from self._call_object(needs_arguments=True)
            yield from self._skip_space()
            self._hold()
            separator = yield from self._match(";")
        self._let_go()

    @classmethod
    def _grammar_of_calls(cls, tools: Sequence[Tool], *, parallel: bool) -> GuidedDecodingParams:
        """Implements ToolParser. The calls come without the special token, which the model mostly leaves out."""
        return guides.of_rules(list(_rules(tools)), len(tools), separator="; ", parallel=parallel)

    @classmethod
    def _grammar_with_calls(cls, tools: Sequence[Tool]) -> GuidedDecodingParams:
        """Implements ToolParser."""
        rules = list(_rules(tools))
        return guides.of_rules(rules, len(tools), separator="; ", parallel=True, unless_begins=_CALL_BEGINS)


def _rules(tools: Sequence[Tool]) -> Iterator[str]:
    for number, tool in enumerate(tools):
        begin = f'{{"name": {json.dumps(tool.name)}, "parameters": '
        yield f'call_{number}: {guides.quoted(begin)} arguments_{number} "}}"'
        yield f"arguments_{number}: {guides.json_rule(tool.parameters)}"
