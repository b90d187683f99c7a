"""Tool calls in the formats that the chat templates of several families use."""

import pytest

from trtllm_lite.serve.parsers import Tool, ToolCallBegin, make_parser

from .parsing import events_of, parsed

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = [Tool("get_weather", SCHEMA), Tool("f")]
PARIS = ["get_weather", '{"city": "Paris"}']
BOTH = ["get_weather", '{"city": "Paris", "days": 3}']
F = ["f", "{}"]
DEEPSEEK_V3 = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
    '{"city": "Paris"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```'
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
DEEPSEEK_V31 = (
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜>'
    "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
    '{"city": "Paris"}<|tool_call_end|><|tool_call_begin|>functions.f:1 <|tool_call_argument_begin|> {}'
    "<|tool_call_end|><|tool_calls_section_end|>"
)
LIST = '[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "f", "arguments": {}}]'
COHERE = (
    '[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"}},\n'
    '    {"tool_call_id": "1", "tool_name": "f", "parameters": {}}\n]'
)
GLM = (
    "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"
)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("deepseek_v3", DEEPSEEK_V3, [PARIS, F]),
        ("deepseek_v31", DEEPSEEK_V31, [PARIS, F]),
        ("deepseek_v31", DEEPSEEK_V3, [PARIS, F]),
        ("deepseek_v31", DEEPSEEK_V31.replace("<｜tool▁calls▁begin｜>", ""), [PARIS, F]),
        ("deepseek_v3", "<｜tool▁calls▁begin｜>no", ["<｜tool▁calls▁begin｜>no"]),
        ("deepseek_v31", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>no", ["<｜tool▁call▁begin｜>f<｜tool▁sep｜>no"]),
        ("kimi_k2", KIMI, [PARIS, F]),
        ("kimi_k2", "<|tool_call_begin|>f<|tool_call_argument_begin|>{}<|tool_call_end|>", [F]),
        ("granite", f"<|tool_call|>{LIST}", [PARIS, F]),
        ("granite", f"<tool_call>{LIST}\n", [PARIS, F]),
        ("granite", '<|tool_call|> {"name": "f"}', [F]),
        ("phi4_mini_json", f"<|tool_call|>{LIST}<|/tool_call|>", [PARIS, F]),
        ("phi4_mini_json", f"functools{LIST}", [PARIS, F]),
        ("phi4_mini_json", "from functools import cache", ["from functools import cache"]),
        (
            "internlm",
            '<|action_start|><|plugin|>\n{"name": "get_weather", "parameters": {"city": "Paris"}}<|action_end|>\n',
            [PARIS],
        ),
        ("internlm", "<|action_start|><|interpreter|>\n1", ["<|action_start|><|interpreter|>\n1"]),
        ("cohere_command3", f"<|START_ACTION|>{COHERE}<|END_ACTION|>", [PARIS, F]),
        ("cohere_command3", f"Action: ```json\n{COHERE}\n```", [PARIS, F]),
        ("glm45", GLM, [BOTH]),
        ("glm47", GLM.replace("\n", "") + "<tool_call>f</tool_call>", [BOTH, F]),
        ("glm45", GLM.replace("</arg_value>\n<arg_key>days", "\n<arg_key>days"), [BOTH]),
        ("glm45", "<tool_call>f\n</tool_call>", [F]),
        ("glm45", "<tool_call></tool_call>", ["<tool_call></tool_call>"]),
        (
            "olmo3",
            '<function_calls>\nget_weather(city="Paris", days=3)\nf()\n</function_calls>',
            [BOTH, F],
        ),
        ("olmo3", "<function_calls>\nf()", [F]),
        ("olmo3", "<function_calls>\nno\n</function_calls>", ["<function_calls>\nno\n</function_calls>"]),
    ],
)
def test_calls_are_as_templates_write_them(name, text, expected):
    assert parsed(text, name, tools=TOOLS) == expected
    answer = "Let me see.\n"
    if isinstance(expected[0], list):
        assert parsed(answer + text, name, tools=TOOLS) == [answer, *expected]
        assert parsed(f"{text} So.", name, tools=TOOLS)[: len(expected)] == expected
    assert parsed(text, name, tools=[]) == [text]


def test_ids_that_a_model_gives_are_kept():
    events = events_of(make_parser(tool_parser="kimi_k2", tools=TOOLS), [KIMI])
    ids = [event.id for event in events if isinstance(event, ToolCallBegin)]
    assert ids == ["functions.get_weather:0", "functions.f:1"]
