"""Defines Olmo3Parser: tool calls of OLMo 3, written as Python in a tag.

``<function_calls>``, a call on each line, ``f(a=1, b="x")``, and ``</function_calls>``; see the chat template of
https://huggingface.co/allenai/Olmo-3-7B-Instruct. Arguments are as ``PythonicParser`` reads them.
"""

from collections.abc import Sequence
from typing import ClassVar

from trtllm_lite.runtime.session.grammar_markers import FREE
from trtllm_lite.runtime.session.guided_decoding import GuidedDecodingParams, Marker
from trtllm_lite.serve.parsers import guides
from trtllm_lite.serve.parsers.pythonic import PythonicParser, call_rules
from trtllm_lite.serve.parsers.text_reader import Steps
from trtllm_lite.serve.parsers.tools import Tool

_BEGIN, _END = "<function_calls>", "</function_calls>"
_MARKERS = [
    *(Marker("begin", f"{_BEGIN}\n"), Marker("end", f"\n{_END}"), Marker("tag", _BEGIN, is_behind_text=True)),
]


class Olmo3Parser(PythonicParser):
    """Parses calls that are lines of Python in a tag."""

    needs_special_tokens: ClassVar[bool] = True
    _markers: ClassVar[tuple[str, ...]] = (_BEGIN,)
    _ends: ClassVar[tuple[str, ...]] = (_END,)

    def _read(self) -> Steps[None]:
        while self._may_call():
            if (yield from self._text_until(self._markers, self._emit_text)) is None:
                return
            yield from self._try(self._lines())
        yield from self._rest()

    def _lines(self) -> Steps[None]:
        yield from self._expect(_BEGIN)
        yield from self._skip_space()
        is_last = False
        while not is_last:
            yield from self._call()
            yield from self._skip_space()
            self._hold()
            is_last = (yield from self._match(_END)) is not None or (yield from self._peek()) == ""
        self._let_go()
        yield from self._skip_space()

    @classmethod
    def _grammar_of_calls(cls, tools: Sequence[Tool], *, parallel: bool) -> GuidedDecodingParams:
        """Implements ToolParser. Arguments come in the schema's order, as JSON, which the parser reads as well."""
        more = '("\\n" call)*' if parallel else ""
        return _guide(tools, [f"start: begin call {more} end"])

    @classmethod
    def _grammar_with_calls(cls, tools: Sequence[Tool]) -> GuidedDecodingParams:
        """Implements ToolParser."""
        return _guide(tools, ['start: (tag "\\n" call ("\\n" call)* end)* FREE', f"FREE: /{FREE}/"])


def _guide(tools: Sequence[Tool], start: Sequence[str]) -> GuidedDecodingParams:
    calls = " | ".join(f"call_{number}" for number in range(len(tools)))
    return guides.of_markers([*start, f"call: {calls}", *call_rules(tools)], _MARKERS)
