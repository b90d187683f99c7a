"""Calls that are JSON objects: Hermes's and Llama 3's."""

import json

import pytest

from .parsing import parsed


def hermes(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


def test_hermes_calls_stand_in_tags():
    text = "\n".join(
        hermes(json.dumps({"name": "get_weather", "arguments": {"city": city}})) for city in ("Paris", "Rome")
    )
    assert parsed("I look it up.\n" + text, "hermes") == [
        "I look it up.\n",
        ["get_weather", '{"city": "Paris"}'],
        ["get_weather", '{"city": "Rome"}'],
    ]


def test_arguments_are_the_models_own_text():
    arguments = '{ "a":[1,2.50e+1,-0],"b" : {"c":null,"d":[true,false,{}]} , "é🙂\\u00e9\\ud83d\\ude00":"\\"\\\\\\n" }'
    assert parsed(hermes(f'{{"name": "f", "arguments": {arguments}}}'), "hermes") == [["f", arguments]]


def test_markers_in_strings_end_nothing():
    arguments = json.dumps({"text": '</tool_call>\n<tool_call>{"name": "g", "arguments": {}}', "deep": [{"}": "]"}]})
    assert parsed(hermes(f'{{"name": "f", "arguments": {arguments}}}'), "hermes") == [["f", arguments]]


@pytest.mark.parametrize("key", ["arguments", "parameters"])
def test_keys_come_in_any_order(key):
    body = f'{{"{key}": {{"a": "{{"}}, "id": [1, {{"name": "h"}}], "\\u006eame" : "f", "name": "g"}}'
    assert parsed(hermes(body), "hermes") == [["f", '{"a": "{"}']]


def test_a_function_without_arguments_may_leave_them_out():
    assert parsed(hermes('{"name": "f"}'), "hermes") == [["f", "{}"]]


def test_a_closing_tag_may_be_missing():
    assert parsed('<tool_call>{"name": "f", "arguments": {}}', "hermes") == [["f", "{}"]]
    assert parsed('<tool_call>{"name": "f", "arguments": {}} </tool_', "hermes") == [["f", "{}"], "</tool_"]


def test_names_of_no_tool_are_reported():
    assert parsed(hermes('{"name": "delete_all", "arguments": {}}'), "hermes") == [["delete_all", "{}"]]


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{}",
        '{"name": ""}',
        '{"name": 3, "arguments": {}}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": "{}"}',
        '{"arguments": {}}',
        '{"arguments": {"a": 01}, "name": "f"}',
        '{"name": "\\ud800", "arguments": {}}',
        '{"name": "' + "f" * 300 + '", "arguments": {}}',
        '{"name": "f",}',
        "{'name': 'f', 'arguments': {}}",
        '[{"name": "f", "arguments": {}}]',
        '"name"',
    ],
)
def test_what_is_no_call_is_content(body):
    assert parsed(f"a {hermes(body)} b", "hermes") == [f"a {hermes(body)} b"]


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        ('{"a": 01}', '{"a": 0'),
        ('{"a": tru}', '{"a": tru'),
        ('{"a": NaN}', '{"a": '),
        ('{"a": -}', '{"a": -'),
        ('{"a": 1.}', '{"a": 1.'),
        ('{"a": "\n"}', '{"a": "'),
        ('{"a": "\\x41"}', '{"a": "\\'),
        ('{"a": "\\u12g4"}', '{"a": "\\u12'),
        ('{"a" 1}', '{"a" '),
        ("{a: 1}", "{"),
        ('{"a": 1,}', '{"a": 1,'),
        ('{"a": [1,]}', '{"a": [1,'),
        ('{"a": [1}', '{"a": [1'),
        ('{"a": 1]', '{"a": 1'),
    ],
)
def test_at_a_fault_in_arguments_the_text_goes_on_as_content(arguments, read):
    text = f'{{"name": "f", "arguments": {arguments}}}'
    rest = f"{arguments.removeprefix(read)}}}\n</tool_call>"
    assert parsed(f"{hermes(text)} {hermes(text)}", "hermes") == [["f", read, "…"], f"{rest} ", ["f", read, "…"], rest]


def test_a_call_after_a_malformed_one_is_found():
    assert parsed('<tool_call>oh <tool_call>{"name": "f"}</tool_call>', "hermes") == ["<tool_call>oh ", ["f", "{}"]]
    assert parsed('<tool_call><tool_call>{"name": "f"}', "hermes") == ["<tool_call>", ["f", "{}"]]


def test_a_text_can_stop_anywhere():
    begin, arguments = '<tool_call>\n{"name": "f", "arguments": ', '{"a": ["\\u00e9", 1.5]}'
    for length in range(len(begin)):
        expected = [begin[:length]] if length else []
        assert parsed(begin[:length], "hermes") == expected
    for length in range(len(arguments)):
        expected = [["f", arguments[:length], "…"]] if length else [begin]
        assert parsed(begin + arguments[:length], "hermes") == expected
    assert parsed(begin + arguments, "hermes") == [["f", arguments, "…"]]
    assert parsed(begin + arguments + "}", "hermes") == [["f", arguments]]


def test_without_tools_nothing_is_called():
    assert parsed(hermes('{"name": "f"}'), "hermes", tools=[]) == [hermes('{"name": "f"}')]


LLAMA = '{"name": "get_weather", "parameters": {"city": "Paris"}}'
WEATHER = ["get_weather", '{"city": "Paris"}']


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LLAMA, [WEATHER]),
        (f"\n {LLAMA}\n", [WEATHER]),
        (f"<|python_tag|>{LLAMA}", [WEATHER]),
        (f"{LLAMA}; {LLAMA};{LLAMA}", [WEATHER] * 3),
        (f"<|python_tag|>{LLAMA}; {LLAMA}", [WEATHER] * 2),
        (f"I ask. <|python_tag|>{LLAMA}", ["I ask. ", WEATHER]),
        ('{"type": "function", "name": "f", "parameters": {}}', [["f", "{}"]]),
        ('{"name": "f", "arguments": {"a": 1}}', [["f", '{"a": 1}']]),
        ('{"name": "Ann", "age": 3}', ['{"name": "Ann", "age": 3}']),
        (f"It is {LLAMA}", [f"It is {LLAMA}"]),
        (f"{LLAMA} is it", [WEATHER, "is it"]),
        (f"{LLAMA}; no", [WEATHER, "; no"]),
        ("<|python_tag|>print(1)", ["<|python_tag|>print(1)"]),
        ('{"a": 1}', ['{"a": 1}']),
        ("", []),
        ("<|python", ["<|python"]),
    ],
)
def test_llama_calls_begin_a_text_or_follow_the_tag(text, expected):
    assert parsed(text, "llama3_json") == expected
