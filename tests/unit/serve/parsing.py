"""Runs parsers over texts, in pieces of any size."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from trtllm_lite.serve.parsers import (
    Content,
    Event,
    OutputParser,
    Reasoning,
    Tool,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
    ToolCallFault,
    join_events,
    make_parser,
)

TOOLS = [Tool("f"), Tool("get_weather")]


def events_of(parser: OutputParser, pieces: Iterable[str]) -> list[Event]:
    events = [event for piece in pieces for event in parser.push(piece)]
    return join_events(events + parser.finish())


def pieces_of(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def said(events: Iterable[Event]) -> list[Any]:
    """Events without ids: content, ("thinks", reasoning), and calls [name, arguments].

    A call that turned out to be malformed is [name, arguments, "…", its text].
    """
    result: list[Any] = []
    calls: dict[int, list[str]] = {}
    for event in events:
        match event:
            case Content(text):
                result.append(text)
            case Reasoning(text):
                result.append(("thinks", text))
            case ToolCallBegin(index, _, name):
                assert index == len(calls)
                calls[index] = [name, "", "…"]
                result.append(calls[index])
            case ToolCallArguments(index, text):
                assert calls[index][-1] == "…"
                calls[index][1] += text
            case ToolCallEnd(index):
                assert calls[index].pop() == "…"
                assert isinstance(json.loads(calls[index][1]), dict)
            case ToolCallFault(index, text):
                assert calls[index][-1] == "…"
                assert isinstance(json.loads(calls[index][1]), dict)
                calls[index].append(text)
    return result


def parsed(text: str, tool_parser: str | None = None, *, tools: Sequence[Tool] = TOOLS, **options: Any) -> list[Any]:
    """What a text says, which must be the same for pieces of several sizes."""
    found = []
    for size in (1, 2, 7, len(text) + 1):
        parser = make_parser(tool_parser=tool_parser, tools=tools, **options)
        found.append(said(events_of(parser, pieces_of(text, size))))
        calls = [item for item in found[-1] if isinstance(item, list)]
        assert parser.has_tool_calls == any(len(call) == 2 for call in calls)
        assert parser.is_inside_tool_call == any(len(call) == 4 for call in calls)
    assert all(other == found[0] for other in found)
    return found[0]
