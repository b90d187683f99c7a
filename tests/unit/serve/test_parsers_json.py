"""Calls that are JSON objects: Hermes's and Llama 3's."""

import json

import pytest

from trtllm_lite.serve.parsers import (
    Content,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallFault,
    make_parser,
    without_faults,
)

from .parsing import TOOLS, events_of, parsed, said


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
    "arguments",
    [
        '{"a": 01}',
        '{"a": tru}',
        '{"a": NaN}',
        '{"a": -}',
        '{"a": 1.}',
        '{"a" 1}',
        "{a: 1}",
        '{"a": [1}',
        '{"a": 1]',
        '{"a": {"b": {x}}}',
    ],
)
def test_malformed_arguments_of_which_none_came_are_content(arguments):
    text = hermes(f'{{"name": "f", "arguments": {arguments}}}')
    assert parsed(f"{text} {text}", "hermes") == [f"{text} {text}"]


@pytest.mark.parametrize(
    ("arguments", "closed"),
    [
        ('{"a": "\\u12g4"}', '{"a": ""}'),
        ('{"a": "xy\\u12g4"}', '{"a": "xy"}'),
        ('{"a": "b" , c}', '{"a": "b" }'),
        ('{"a": 1,}', '{"a": 1}'),
        ('{"a": [1,]}', '{"a": [1]}'),
        ('{"a": [{"b": "x" y}]}', '{"a": [{"b": "x" }]}'),
        ('{"a": 1, b: 2}', '{"a": 1}'),
        ('{"a": "say "hi"", "b": 2}', '{"a": "say "}'),
        ('{"a": [1, 2}', '{"a": [1]}'),
    ],
)
def test_malformed_arguments_are_closed_and_the_rest_is_no_content(arguments, closed):
    text = hermes(f'{{"name": "f", "arguments": {arguments}}}')
    malformed = ["f", closed, "…", text]
    assert parsed(f"a {text} b " + hermes('{"name": "f"}'), "hermes") == ["a ", malformed, "b ", ["f", "{}"]]
    assert parsed(text + text, "hermes") == [malformed, malformed]
    end = "\n</tool_call>"
    written = text.removesuffix(end)
    assert parsed(written + text, "hermes") == [["f", closed, "…", written], malformed]  # the first has no closing tag
    events = events_of(make_parser(tool_parser="hermes", tools=TOOLS), [f"a {text} b"])
    assert without_faults(events) == [Content(f"a {text}b")]


@pytest.mark.parametrize(
    ("written", "meant"),
    [("a\nb\t\x01", "a\nb\t\x01"), (r"\d+\.\x41", r"\d+\.\x41"), ("\\\n", "\\\n"), (r"it\'s", r"it\'s")],
)
def test_what_json_wants_escaped_in_strings_is(written, meant):
    ((name, arguments),) = parsed(hermes(f'{{"name": "f", "arguments": {{"a": ["{written}"]}}}}'), "hermes")
    assert (name, json.loads(arguments)) == ("f", {"a": [meant]})


@pytest.mark.parametrize("rest", ["", "\n</tool_call>", "\n]</tool_call>", "}}\n</tool_call>", ', "id": </tool_call>'])
def test_a_call_whose_arguments_are_whole_is_one(rest):
    text = f'<tool_call>{{"name": "f", "arguments": {{"a": {{}}}}{rest}'
    assert parsed(text, "hermes") == [["f", '{"a": {}}']]


def test_a_call_that_was_cut_off_behind_its_arguments_is_none():
    text = '<tool_call>{"name": "f", "arguments": {"a": {}}'
    parser = make_parser(tool_parser="hermes", tools=TOOLS)
    assert said([*parser.push(text), *parser.finish(is_cut=True)]) == [["f", '{"a": {}}', "…", text]]


def test_a_call_after_a_malformed_one_is_found():
    assert parsed('<tool_call>oh <tool_call>{"name": "f"}</tool_call>', "hermes") == ["<tool_call>oh ", ["f", "{}"]]
    assert parsed('<tool_call><tool_call>{"name": "f"}', "hermes") == ["<tool_call>", ["f", "{}"]]


def test_a_text_can_stop_anywhere():
    text = '<tool_call>\n{"name": "f", "arguments": {"a": ["\\u00e9", 1.5]}}'
    begins, ends = text.index("\\"), text.index("}}") + 1
    for length in range(len(text)):
        stopped = text[:length]
        if length < begins:
            assert parsed(stopped, "hermes") == ([stopped] if length else [])
        elif length < ends:
            (call,) = parsed(stopped, "hermes")
            assert call[:1] + call[2:] == ["f", "…", stopped]
        else:
            assert parsed(stopped, "hermes") == [["f", '{"a": ["\\u00e9", 1.5]}']]


def test_what_is_cut_off_stays_open():
    text = '<tool_call>{"name": "f", "arguments": {"a": ["x", "y'
    for name in (None, "qwen3"):
        parser = make_parser(tool_parser="hermes", reasoning_parser=name, tools=TOOLS)
        begin, *arguments, fault = [*parser.push(text), *parser.finish(is_cut=True)]
        assert isinstance(begin, ToolCallBegin)
        assert arguments == [ToolCallArguments(0, '{"a": ["x", "y')]
        assert fault == ToolCallFault(0, text)
        assert parser.is_inside_tool_call


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
