"""Finds parsers by the names that users know, which are vLLM's, and detects them by a model's chat template."""

from collections.abc import Iterable, Sequence

from trtllm_lite.errors import ArgumentError, shown
from trtllm_lite.runtime.session.reasoning import Thoughts
from trtllm_lite.serve.parsers.composed import ComposedParser
from trtllm_lite.serve.parsers.events import OutputParser
from trtllm_lite.serve.parsers.glm import GlmParser
from trtllm_lite.serve.parsers.harmony import THOUGHTS, HarmonyParser
from trtllm_lite.serve.parsers.headed_calls import DeepseekV3Parser, DeepseekV31Parser, KimiK2Parser
from trtllm_lite.serve.parsers.hermes import HermesParser
from trtllm_lite.serve.parsers.json_calls import CohereParser, GraniteParser, InternlmParser, Phi4MiniParser
from trtllm_lite.serve.parsers.llama3_json import Llama3JsonParser
from trtllm_lite.serve.parsers.mistral import MistralParser
from trtllm_lite.serve.parsers.olmo3 import Olmo3Parser
from trtllm_lite.serve.parsers.pythonic import PythonicParser
from trtllm_lite.serve.parsers.qwen3_coder import Qwen3CoderParser
from trtllm_lite.serve.parsers.reasoning import REASONING_MARKERS, ReasoningParser
from trtllm_lite.serve.parsers.tool_parser import ToolParser
from trtllm_lite.serve.parsers.tools import Tool

TOOL_PARSERS: dict[str, type[ToolParser]] = {
    "cohere_command3": CohereParser,
    "deepseek_v3": DeepseekV3Parser,
    "deepseek_v31": DeepseekV31Parser,
    "glm45": GlmParser,
    "glm47": GlmParser,
    "granite": GraniteParser,
    "hermes": HermesParser,
    "internlm": InternlmParser,
    "kimi_k2": KimiK2Parser,
    "llama3_json": Llama3JsonParser,
    "mistral": MistralParser,
    "olmo3": Olmo3Parser,
    "openai": HarmonyParser,
    "phi4_mini_json": Phi4MiniParser,
    "pythonic": PythonicParser,
    "qwen3_coder": Qwen3CoderParser,
}
_HARMONY = ("openai", "openai_gptoss")
"""One parser under two names, because its format covers thoughts, answers and calls together."""
REASONING_PARSERS = tuple(sorted((*REASONING_MARKERS, _HARMONY[1])))

_TOOL_MARKS = (
    ("openai", ("<|channel|>",)),
    ("mistral", ("[TOOL_CALLS]",)),
    ("qwen3_coder", ("<function=", "<parameter=")),
    ("glm45", ("<tool_call>", "<arg_key>")),
    ("kimi_k2", ("<|tool_calls_section_begin|>",)),
    ("deepseek_v3", ("<｜tool▁calls▁begin｜>", "```json")),
    ("deepseek_v31", ("<｜tool▁calls▁begin｜>",)),
    ("cohere_command3", ("<|START_ACTION|>",)),
    ("cohere_command3", ("Action:", '"tool_name"')),
    ("internlm", ("<|action_start|>",)),
    ("internlm", ("<|plugin|>",)),
    ("olmo3", ("<function_calls>",)),
    ("phi4_mini_json", ("<|tool|>", "<|/tool|>")),
    ("granite", ("<|tool_call|>",)),
    ("hermes", ("<tool_call>", "name")),
    ("pythonic", ("<|python_start|>",)),
    ("llama3_json", ("<|python_tag|>",)),
    ("llama3_json", ("<|start_header_id|>", '"parameters"')),
)
_REASONING_MARKS = (
    ("openai_gptoss", ("<|channel|>",)),
    ("mistral", ("[THINK]",)),
    ("granite", ("Here is my thought process",)),
    ("cohere_command3", ("<|START_THINKING|>",)),
    ("deepseek_r1", ("</think>", "<｜Assistant｜>")),
    ("qwen3", ("</think>",)),
)


def make_parser(
    *,
    tool_parser: str | None = None,
    reasoning_parser: str | None = None,
    tools: Sequence[Tool] = (),
    starts_inside: bool = False,
) -> OutputParser:
    """A parser of one text.

    ``tools`` are those of the request; without tools, text that looks like a call is content. ``starts_inside``: the
    prompt ends inside the model's thoughts, as with chat templates that open them. Raises ArgumentError for unknown
    names.
    """
    check_names(tool_parser, reasoning_parser)
    if tool_parser == _HARMONY[0] or reasoning_parser == _HARMONY[1]:
        return ComposedParser(None, HarmonyParser(tools, starts_inside=starts_inside))
    markers = None if reasoning_parser is None else REASONING_MARKERS[reasoning_parser]
    thoughts = None if markers is None else ReasoningParser(markers, starts_inside=starts_inside)
    kind = None if tool_parser is None or not tools else TOOL_PARSERS[tool_parser]
    if kind is None:
        return ComposedParser(thoughts, None)
    return ComposedParser(thoughts, kind(tools), kind(tools) if thoughts is not None and kind.has_markers() else None)


def needs_special_tokens(tool_parser: str | None, reasoning_parser: str | None) -> bool:
    """Whether the text has to include the names of special tokens. Raises ArgumentError for unknown names."""
    check_names(tool_parser, reasoning_parser)
    if reasoning_parser == _HARMONY[1] or (reasoning_parser and REASONING_MARKERS[reasoning_parser].are_special):
        return True
    return tool_parser is not None and TOOL_PARSERS[tool_parser].needs_special_tokens


def thoughts_of(reasoning_parser: str | None) -> Thoughts | None:
    """The markers of thoughts, if there is a parser of them. Raises ArgumentError for unknown names."""
    check_names(None, reasoning_parser)
    if reasoning_parser is None:
        return None
    return THOUGHTS if reasoning_parser == _HARMONY[1] else REASONING_MARKERS[reasoning_parser].thoughts


def find_tool_parser(name: str) -> type[ToolParser]:
    """The tool parser of a name. Raises ArgumentError if there is none."""
    _check_name("tool_parser", name, TOOL_PARSERS)
    return TOOL_PARSERS[name]


def detect(chat_template: str | None) -> tuple[str | None, str | None]:
    """The names of the tool parser and of the reasoning parser that fit a model's chat template.

    Each is taken from the first row whose marks are all in the template; None if there is no such row.
    """
    return _first(_TOOL_MARKS, chat_template or ""), _first(_REASONING_MARKS, chat_template or "")


def _first(rows: Sequence[tuple[str | None, tuple[str, ...]]], template: str) -> str | None:
    return next((name for name, marks in rows if all(mark in template for mark in marks)), None)


def check_names(tool_parser: str | None, reasoning_parser: str | None) -> None:
    """Raise ArgumentError for unknown names of parsers, and for two parsers that do not go together."""
    if tool_parser is not None:
        _check_name("tool_parser", tool_parser, TOOL_PARSERS)
    if reasoning_parser is not None:
        _check_name("reasoning_parser", reasoning_parser, REASONING_PARSERS)
    names = (tool_parser, reasoning_parser)
    for name, other in (names, names[::-1]):
        if name in _HARMONY and other is not None and other not in _HARMONY:
            raise ArgumentError(
                f"tool_parser {shown(tool_parser)} does not go with reasoning_parser {shown(reasoning_parser)}: "
                f"{name} reads all of the text; leave {other} out"
            )


def _check_name(what: str, name: str, known: Iterable[str]) -> None:
    if name not in known:
        raise ArgumentError(f"{what} is {shown(name)}: expected one of {', '.join(sorted(known))}")
