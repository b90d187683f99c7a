"""Defines CountedParser: counts the texts that were searched for tool calls."""

from collections import Counter

from trtllm_lite.serve.parsers import Event, OutputParser


class CountedParser:
    """An OutputParser that records in ``outcomes``, at the end of the text, whether ``parser`` has found a call."""

    def __init__(self, parser: OutputParser, outcomes: Counter[str]) -> None:
        self._parser, self._outcomes = parser, outcomes
        self.push = parser.push

    @property
    def has_tool_calls(self) -> bool:
        """See OutputParser."""
        return self._parser.has_tool_calls

    @property
    def is_inside_tool_call(self) -> bool:
        """See OutputParser."""
        return self._parser.is_inside_tool_call

    def finish(self, *, is_cut: bool = False) -> list[Event]:
        """See OutputParser."""
        events = self._parser.finish(is_cut=is_cut)
        self._outcomes["tool_call" if self.has_tool_calls else "no_tool_call"] += 1
        return events
