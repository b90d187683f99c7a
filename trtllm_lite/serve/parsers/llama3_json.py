"""Llama3JsonParser: calls of Llama 3.1 to 3.3.

A text that calls is one JSON object with ``name`` and ``parameters``, or several with semicolons between them, at its
very beginning or behind ``<|python_tag|>``. An object without both keys is content, since it may be the answer.
"""

import json
from collections.abc import Sequence
from typing import ClassVar

from trtllm_lite.runtime.session.guided_decoding import GuidedDecodingParams
from trtllm_lite.serve.parsers import guides
from trtllm_lite.serve.parsers.text_reader import Steps
from trtllm_lite.serve.parsers.tool_parser import MarkedCallParser
from trtllm_lite.serve.parsers.tools import Tool, ToolChoice

_TAG = "<|python_tag|>"
# What a text that calls nothing does not begin with, so that no call escapes its schema by another spelling.
_CALL_BEGINS = r'\s*\{\s*"(name|type|parameters|arguments|function)"'


class Llama3JsonParser(MarkedCallParser):
    """Calls as JSON objects, at the beginning of the text or behind a special token."""

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
    def guide(cls, tools: Sequence[Tool], tool_choice: ToolChoice, *, parallel: bool) -> GuidedDecodingParams | None:
        """See ToolParser. The calls are written without the special token, which no grammar allows."""
        required = guides.required(tools, tool_choice)
        if required is not None:
            return guides.calls([_frame(tool) for tool in required], separator="; ", parallel=parallel)
        if guides.has_strict(tools, tool_choice):
            frames = [_frame(guides.as_strict_as(tool)) for tool in tools]
            return guides.calls(frames, separator="; ", parallel=parallel, unless_begins=_CALL_BEGINS)
        return None


def _frame(tool: Tool) -> guides.Frame:
    return guides.Frame(f'{{"name": {json.dumps(tool.name)}, "parameters": ', tool.parameters, "}")
