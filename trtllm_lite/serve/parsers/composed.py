"""Defines ComposedParser: parses thoughts first, and then calls in the rest."""

from trtllm_lite.serve.parsers.events import Content, Event, Reasoning
from trtllm_lite.serve.parsers.reasoning import ReasoningParser
from trtllm_lite.serve.parsers.tool_parser import ToolParser


class ComposedParser:
    """An OutputParser made of a reasoning parser, a tool parser, both or neither.

    Calls inside thoughts do not count, except if the text ended and the thoughts did not, because models forget to end
    their thoughts. Then the calls that a second tool parser, ``in_thoughts``, finds in them are reported, if all are
    complete.
    """

    def __init__(
        self, reasoning: ReasoningParser | None, tools: ToolParser | None, in_thoughts: ToolParser | None = None
    ) -> None:
        self._reasoning, self._tools, self._in_thoughts = reasoning, tools, in_thoughts
        self._buried: list[Event] = []

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
        events: list[Event] = []
        if self._reasoning is not None:
            events = self._find_calls(self._reasoning.finish(is_cut=is_cut))
            if self._in_thoughts is not None and self._reasoning.is_inside and not is_cut:
                self._bury(self._in_thoughts.finish())
                if not self._in_thoughts.is_inside_tool_call:
                    self._tools = self._in_thoughts
                    return events + self._buried
        return events + self._tools.finish(is_cut=is_cut) if self._tools is not None else events

    def _find_calls(self, events: list[Event]) -> list[Event]:
        if self._tools is None:
            return events
        found: list[Event] = []
        for event in events:
            if isinstance(event, Reasoning) and self._in_thoughts is not None:
                self._bury(self._in_thoughts.push(event.text))
            found += self._tools.push(event.text) if isinstance(event, Content) else [event]
        return found

    def _bury(self, events: list[Event]) -> None:
        self._buried += [event for event in events if not isinstance(event, Content)]
