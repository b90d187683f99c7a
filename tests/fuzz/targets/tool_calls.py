"""What a model writes, read as thoughts, answers and tool calls, with tools whose schemas a client sends."""

import json
import random
from pathlib import Path
from typing import Any

from tests.fuzz.damage import damaged_text
from tests.fuzz.documents import mutated
from trtllm_lite.serve.parsers import (
    REASONING_PARSERS,
    TOOL_PARSERS,
    Event,
    NamedFunction,
    Tool,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
    ToolCallFault,
    find_tool_parser,
    join_events,
    make_parser,
)

COUNT = 400
_MOST_PIECES = 4096  # pieces of a text: some texts are damaged into a million characters
_TEXTS = {
    "cohere_command3": '<|START_THINKING|>hm<|END_THINKING|><|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", '
    '"parameters": {"a": 1, "b": ["x"]}}]<|END_ACTION|>Action: ```json\n[{"tool_name": "g", "parameters": {}}]\n```',
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
    '{"a": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "glm45": "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>b</arg_key>\n"
    "<arg_value>['x']</arg_value>\n<arg_key>c</arg_key>\n<arg_value>q</arg_value>\n</tool_call>",
    "granite": '<|tool_call|>[{"name": "f", "arguments": {"a": 1, "b": {"k": "v"}}}, {"name": "g", "arguments": {}}]',
    "hermes": '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "f", "arguments": {"a": 1, "b": ["x"]}}\n</tool_call>\n',
    "internlm": '<|action_start|><|plugin|>\n{"name": "f", "parameters": {"a": 1, "c": "q"}}<|action_end|>\n',
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
    '{"a": 1, "b": [2, 3]}<|tool_call_end|><|tool_calls_section_end|>',
    "llama3_json": '{"name": "f", "parameters": {"a": 1, "b": ["\\u00e9"]}}; {"parameters": {}, "name": "g"}',
    "mistral": '[THINK]hm[/THINK][TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}][TOOL_CALLS]g[ARGS]{"b": {}}',
    "olmo3": "<function_calls>\nf(a=1, b=['x'])\ng()\n</function_calls>",
    "openai": "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.f "
    '<|constrain|>json<|message|>{"a": 1}<|call|>',
    "pythonic": "[f(a=1, b=['x', {\"k\": None}], c='''q\\u00e9'''), g()]",
    "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n['x']\n</parameter>\n"
    "<parameter=c>\nq\n</parameter>\n</function>\n</tool_call>",
}
_PROPERTIES = {
    "a": {"type": ["integer", "null"]},
    "b": {"anyOf": [{"type": "array", "items": {}}, {"$ref": "#/$defs/b"}]},
    "c": {"type": "string", "enum": ["q", "r"]},
}
_SCHEMA = {"type": "object", "properties": _PROPERTIES, "required": ["a"], "$defs": {"b": {"type": "object"}}}


class Target:
    """A text of some form, damaged, for a parser of this form or of another, and the grammar of the tools' calls."""

    def __init__(self, scratch: Path) -> None:
        del scratch

    def write(self, rng: random.Random, directory: Path) -> None:
        text = _TEXTS[rng.choice(tuple(_TEXTS))].encode()
        for _ in range(rng.choice((0, 1, 1, 3))):
            text = damaged_text(rng, text) if rng.random() < 0.5 else text + _TEXTS[rng.choice(tuple(_TEXTS))].encode()
        (directory / "text").write_bytes(text)
        schema = mutated(rng, _SCHEMA) if rng.random() < 0.5 else _SCHEMA
        request = {
            "schema": schema if isinstance(schema, dict) else _SCHEMA,
            "tool_parser": rng.choice((*TOOL_PARSERS, "gpt")),
            "reasoning_parser": rng.choice((None, None, *REASONING_PARSERS)),
            "starts_inside": rng.random() < 0.3,
            "tool_choice": rng.choice(("auto", "none", "required", "f", "h")),
            "size": rng.choice((1, 3, 17, 1 << 16)),
        }
        (directory / "request.json").write_text(json.dumps(request))

    def read(self, directory: Path) -> None:
        request = json.loads((directory / "request.json").read_text())
        text = (directory / "text").read_bytes().decode(errors="replace")
        tools = [Tool("f", request["schema"], strict=True), Tool("g")]
        size = max(request["size"], -(-len(text) // _MOST_PIECES))
        assert _events(request, tools, text, size) == _events(request, tools, text, len(text) + 1)
        choice = request["tool_choice"]
        guide = find_tool_parser(request["tool_parser"]).guide
        guide(tools, choice if len(choice) > 1 else NamedFunction(choice), parallel=True)


def _check_arguments(events: list[Event]) -> None:
    """The arguments of all calls, of malformed ones too, are JSON objects."""
    texts: dict[int, str] = {}
    for event in events:
        if isinstance(event, ToolCallArguments):
            texts[event.index] = texts.get(event.index, "") + event.text
        if isinstance(event, ToolCallEnd | ToolCallFault):
            assert isinstance(json.loads(texts[event.index]), dict)


def _events(request: dict[str, Any], tools: list[Tool], text: str, size: int) -> list[Event]:
    names = {name: request[name] for name in ("tool_parser", "reasoning_parser", "starts_inside")}
    parser, events = make_parser(tools=tools, **names), []
    for at in range(0, len(text), size):
        events += parser.push(text[at : at + size])
    events = join_events(events + parser.finish())
    _check_arguments(events)
    assert parser.has_tool_calls or not any(isinstance(event, ToolCallEnd) for event in events)
    return [
        ToolCallBegin(event.index, "", event.name) if isinstance(event, ToolCallBegin) else event for event in events
    ]
