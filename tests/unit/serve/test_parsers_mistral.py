"""Mistral's calls, of old and new tokenizers."""

import re

import pytest

from trtllm_lite.serve.parsers import ToolCallBegin, make_parser

from .parsing import TOOLS, events_of, parsed

PARIS = ["get_weather", '{"city": "Paris"}']
OBJECT = '{"name": "get_weather", "arguments": {"city": "Paris"}}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"[TOOL_CALLS] [{OBJECT}]", [PARIS]),
        (f"[TOOL_CALLS][{OBJECT}, {OBJECT}]\n", [PARIS, PARIS]),
        (f"I ask.[TOOL_CALLS] [{OBJECT}]", ["I ask.", PARIS]),
        ('[TOOL_CALLS][{"arguments": {"]": "[TOOL_CALLS]"}, "name": "f"}]', [["f", '{"]": "[TOOL_CALLS]"}']]),
        ('[TOOL_CALLS]get_weather{"city": "Paris"}', [PARIS]),
        ('[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]f[ARGS]{}', [PARIS, ["f", "{}"]]),
        ('[TOOL_CALLS]get_weather[CALL_ID]abcDEF123[ARGS]{"city": "Paris"}', [PARIS]),
        ("[TOOL_CALLS] f {} [TOOL_CALLS] f [ARGS] {}", [["f", "{}"], ["f", "{}"]]),
        ("[TOOL_CALLS]", ["[TOOL_CALLS]"]),
        ("[TOOL_CALLS][]", ["[TOOL_CALLS][]"]),
        ("[TOOL_CALLS] sorry", ["[TOOL_CALLS] sorry"]),
        ("[TOOL_CALLS]f[ARGS]no", ["[TOOL_CALLS]f[ARGS]no"]),
        ('[TOOL_CALLS]f{"a": ', ['[TOOL_CALLS]f{"a": ']),
        ('[TOOL_CALLS]f{"a": "b', [["f", '{"a": "b"}', "…", '[TOOL_CALLS]f{"a": "b']]),
        (
            '[TOOL_CALLS]f{"a": "b" c}[TOOL_CALLS]f{}',
            [["f", '{"a": "b" }', "…", '[TOOL_CALLS]f{"a": "b" c}'], ["f", "{}"]],
        ),
        (f"[TOOL_CALLS][{OBJECT}, 3]", [PARIS, ", 3]"]),
        (f"[TOOL_CALLS][{OBJECT} and more", [PARIS, "and more"]),
        ("[TOOL", ["[TOOL"]),
        (f"[{OBJECT}]", [f"[{OBJECT}]"]),
    ],
)
def test_calls_stand_behind_the_token(text, expected):
    assert parsed(text, "mistral") == expected


def test_ids_have_nine_letters_or_digits():
    text = f"[TOOL_CALLS]f[CALL_ID]abcDEF123[ARGS]{{}}[TOOL_CALLS]f[CALL_ID]abc[ARGS]{{}}[TOOL_CALLS][{OBJECT}]"
    events = events_of(make_parser(tool_parser="mistral", tools=TOOLS), [text])
    first, *others = (event.id for event in events if isinstance(event, ToolCallBegin))
    assert first == "abcDEF123"
    assert len({first, *others}) == 3
    assert all(re.fullmatch("[A-Za-z0-9]{9}", other) for other in others)


def test_thoughts_go_before_calls():
    text = "[THINK]hm[/THINK]Well.[TOOL_CALLS]f[ARGS]{}"
    assert parsed(text, "mistral", reasoning_parser="mistral") == [("thinks", "hm"), "Well.", ["f", "{}"]]
