"""Defines HermesParser: tool calls of Hermes, Qwen2.5 and Qwen3.

A call is ``<tool_call>``, a JSON object with ``name`` and ``arguments``, and ``</tool_call>``; a text can have several.
The closing tag may be missing, as models sometimes end without it.
"""

from typing import ClassVar

from trtllm_lite.serve.parsers.guides import CallFormat, Slot
from trtllm_lite.serve.parsers.text_reader import Steps
from trtllm_lite.serve.parsers.tool_parser import FormedCallParser

_BEGIN, _END = "<tool_call>", "</tool_call>"


class HermesParser(FormedCallParser):
    """Parses calls that are JSON objects in ``<tool_call>`` tags."""

    _markers: ClassVar[tuple[str, ...]] = (_BEGIN,)
    _ends: ClassVar[tuple[str, ...]] = (_END,)
    _format: ClassVar[CallFormat] = CallFormat(
        marker=_BEGIN,
        repeated=True,
        call=('\n{"name": ', Slot.JSON_NAME, ', "arguments": ', Slot.ARGUMENTS, f"}}\n{_END}"),
        separator="\n",
    )

    def _call(self) -> Steps[None]:
        yield from self._expect(_BEGIN)
        yield from self._skip_space()
        yield from self._call_object(needs_arguments=False)
        yield from self._read_end()
