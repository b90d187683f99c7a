"""Parses a model's text, as it is generated, into content, reasoning and tool calls.

``make_parser`` makes a parser for one text; ``find_tool_parser(name).guide`` makes a grammar that forces calls in the
model's format, and ``thoughts_of(name)`` gives the markers of thoughts before the answer. A text ended with tool
calls if it ended by itself, and its parser has the property ``has_tool_calls`` and not ``is_inside_tool_call``.
"""

from trtllm_lite.serve.parsers.events import (
    Content,
    Event,
    OutputParser,
    Reasoning,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
    ToolCallFault,
    join_events,
    without_faults,
)
from trtllm_lite.serve.parsers.guides import MarkedGrammar
from trtllm_lite.serve.parsers.registry import (
    REASONING_PARSERS,
    TOOL_PARSERS,
    check_names,
    detect,
    find_tool_parser,
    make_parser,
    needs_special_tokens,
    thoughts_of,
)
from trtllm_lite.serve.parsers.tools import NamedFunction, Tool, ToolChoice

__all__ = [
    "REASONING_PARSERS",
    "TOOL_PARSERS",
    "Content",
    "Event",
    "MarkedGrammar",
    "NamedFunction",
    "OutputParser",
    "Reasoning",
    "Tool",
    "ToolCallArguments",
    "ToolCallBegin",
    "ToolCallEnd",
    "ToolCallFault",
    "ToolChoice",
    "check_names",
    "detect",
    "find_tool_parser",
    "join_events",
    "make_parser",
    "needs_special_tokens",
    "thoughts_of",
    "without_faults",
]
