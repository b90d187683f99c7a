"""HermesParser: calls of Hermes, Qwen2.5 and Qwen3.

A call is ``<tool_call>``, a JSON object with ``name`` and ``arguments``, and ``</tool_call>``; a text can have several.
The closing tag may be missing, as models sometimes end without it.
"""

import json
from collections.abc import Sequence
from typing import ClassVar

from trtllm_lite.runtime.session.guided_decoding import GuidedDecodingParams
from trtllm_lite.serve.parsers import guides
from trtllm_lite.serve.parsers.text_reader import Steps
from trtllm_lite.serve.parsers.tool_parser import MarkedCallParser
from trtllm_lite.serve.parsers.tools import Tool, ToolChoice

_BEGIN, _END = "<tool_call>", "</tool_call>"


class HermesParser(MarkedCallParser):
    """Calls as JSON objects in ``<tool_call>`` tags."""

    _markers: ClassVar[tuple[str, ...]] = (_BEGIN,)

    def _call(self) -> Steps[None]:
        yield from self._expect(_BEGIN)
        yield from self._skip_space()
        yield from self._call_object(needs_arguments=False)
        yield from self._skip_space()
        yield from self._match(_END)
        yield from self._skip_space()

    @classmethod
    def guide(cls, tools: Sequence[Tool], tool_choice: ToolChoice, *, parallel: bool) -> GuidedDecodingParams | None:
        """See ToolParser."""
        required = guides.required(tools, tool_choice)
        if required is not None:
            return guides.calls([_frame(tool) for tool in required], separator="\n", parallel=parallel)
        if guides.has_strict(tools, tool_choice):
            return guides.tagged([_frame(guides.as_strict_as(tool)) for tool in tools], trigger=_BEGIN)
        return None


def _frame(tool: Tool) -> guides.Frame:
    begin = f'{_BEGIN}\n{{"name": {json.dumps(tool.name)}, "arguments": '
    return guides.Frame(begin, tool.parameters, f"}}\n{_END}")
