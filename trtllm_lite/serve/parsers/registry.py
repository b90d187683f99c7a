"""Parsers by the names that users know, which are vLLM's, and what a model's chat template says of them."""

from collections.abc import Iterable, Sequence

from trtllm_lite.errors import ArgumentError, shown
from trtllm_lite.serve.parsers.composed import ComposedParser
from trtllm_lite.serve.parsers.events import OutputParser
from trtllm_lite.serve.parsers.hermes import HermesParser
from trtllm_lite.serve.parsers.llama3_json import Llama3JsonParser
from trtllm_lite.serve.parsers.reasoning import REASONING_MARKERS, ReasoningParser
from trtllm_lite.serve.parsers.tool_parser import ToolParser
from trtllm_lite.serve.parsers.tools import Tool

TOOL_PARSERS: dict[str, type[ToolParser]] = {
    "hermes": HermesParser,
    "llama3_json": Llama3JsonParser,
}
REASONING_PARSERS = tuple(sorted(REASONING_MARKERS))


def make_parser(
    *,
    tool_parser: str | None = None,
    reasoning_parser: str | None = None,
    tools: Sequence[Tool] = (),
    starts_inside: bool = False,
) -> OutputParser:
    """A parser of one text.

    ``tools`` are those of the request; without any nothing is called, and what looks like a call is content.
    ``starts_inside``: the prompt ends inside the model's thoughts, as chat templates that open them make it end.
    Raises ArgumentError for names of no parser.
    """
    tool_class = None if tool_parser is None else find_tool_parser(tool_parser)
    calls = tool_class(tools) if tool_class is not None and tools else None
    if reasoning_parser is None:
        return ComposedParser(None, calls)
    check_reasoning_parser(reasoning_parser)
    return ComposedParser(ReasoningParser(REASONING_MARKERS[reasoning_parser], starts_inside=starts_inside), calls)


def find_tool_parser(name: str) -> type[ToolParser]:
    """The tool parser of a name. Raises ArgumentError if there is none."""
    _check_name("tool_parser", name, TOOL_PARSERS)
    return TOOL_PARSERS[name]


def check_reasoning_parser(name: str) -> None:
    """Raise ArgumentError if ``name`` is no reasoning parser's."""
    _check_name("reasoning_parser", name, REASONING_PARSERS)


def _check_name(what: str, name: str, known: Iterable[str]) -> None:
    if name not in known:
        raise ArgumentError(f"{what} is {shown(name)}: expected one of {', '.join(sorted(known))}")
