"""ComposedParser: thoughts first, and calls in what is left."""

from trtllm_lite.serve.parsers.events import Content, Event
from trtllm_lite.serve.parsers.reasoning import ReasoningParser
from trtllm_lite.serve.parsers.tool_parser import ToolParser


class ComposedParser:
    """An OutputParser of a reasoning parser, a tool parser, both or neither. Thoughts call nothing."""

    def __init__(self, reasoning: ReasoningParser | None, tools: ToolParser | None) -> None:
        self._reasoning, self._tools = reasoning, tools

    @property
    def has_tool_calls(self) -> bool:
        """See OutputParser."""
        return self._tools is not None and self._tools.has_tool_calls

    @property
    def is_inside_tool_call(self) -> bool:
        """See OutputParser."""
        return self._tools is not None and self._tools.is_inside_tool_call

    def push(self, text: str) -> list[Event]:
        """See OutputParser."""
        if self._reasoning is not None:
            return self._find_calls(self._reasoning.push(text))
        return self._find_calls([Content(text)] if text else [])

    def finish(self, *, is_cut: bool = False) -> list[Event]:
        """See OutputParser."""
        events = self._find_calls(self._reasoning.finish(is_cut=is_cut)) if self._reasoning is not None else []
        return events + self._tools.finish(is_cut=is_cut) if self._tools is not None else events

    def _find_calls(self, events: list[Event]) -> list[Event]:
        if self._tools is None:
            return events
        found: list[Event] = []
        for event in events:
            found += self._tools.push(event.text) if isinstance(event, Content) else [event]
        return found
