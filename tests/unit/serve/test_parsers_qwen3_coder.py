"""Calls in tags, whose values get their types from schemas."""

import json

import pytest

from trtllm_lite.serve.parsers import Tool

from .parsing import parsed

PROPERTIES = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "ratio": {"type": "number"},
    "flag": {"type": "boolean"},
    "items": {"type": "array", "items": {"type": "string"}},
    "table": {"type": "object"},
    "maybe": {"type": ["integer", "null"]},
    "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "size": {"enum": [1, 2]},
    "place": {"$ref": "#/$defs/place"},
}
SCHEMA = {"type": "object", "properties": PROPERTIES, "$defs": {"place": {"type": "object"}}}
TOOL = Tool("f", SCHEMA)


def call(**arguments: str) -> str:
    lines = [f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items()]
    return f"<tool_call>\n<function=f>\n{''.join(lines)}</function>\n</tool_call>"


def value_of(key: str, text: str):
    (found,) = parsed(call(**{key: text}), "qwen3_coder", tools=[TOOL])
    assert found[0] == "f"
    (value,) = json.loads(found[1]).values()
    return value


def test_calls_stand_in_tags():
    text = f"I look.\n{call(text='Paris', count='3')}\n{call()}\n"
    assert parsed(text, "qwen3_coder", tools=[TOOL]) == [
        "I look.\n",
        ["f", '{"text": "Paris", "count": 3}'],
        ["f", "{}"],
    ]


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("text", "3", "3"),
        ("text", "null", "null"),
        ("text", ' two\n\nlines \\ "é🙂\t', ' two\n\nlines \\ "é🙂\t'),
        ("text", "", ""),
        ("other", "3", "3"),
        ("count", "3", 3),
        ("count", " -3 ", -3),
        ("count", "three", "three"),
        ("count", "03", "03"),
        ("ratio", "2.5e1", 25.0),
        ("ratio", "NaN", "NaN"),
        ("flag", "True", True),
        ("flag", "false", False),
        ("flag", "1", "1"),
        ("items", '["a", "b"]', ["a", "b"]),
        ("items", "['a', \"b\",]", ["a", "b"]),
        ("items", "a, b", "a, b"),
        ("items", "[a, b]", "[a, b]"),
        ("table", '{"a": {"b": [1]}}', {"a": {"b": [1]}}),
        ("table", "{'a': True}", {"a": True}),
        ("maybe", "null", None),
        ("maybe", "None", None),
        ("maybe", "4", 4),
        ("note", "null", None),
        ("note", "nullify", "nullify"),
        ("note", "4", "4"),
        ("size", "2", 2),
        ("place", '{"x": 1}', {"x": 1}),
    ],
)
def test_values_have_the_schemas_types(key, text, value):
    assert value_of(key, text) == value


@pytest.mark.parametrize(
    "text",
    [
        "<parameter=count>\n3",
        "a\n<parameter=count>\n3\n</parameter>\nb",
        "</parameter>",
        "a</parameter>\n</function",
        "</function>\n</tool_call>",
        "<tool_call>\n<function=f>",
        "</parameter></parameter>",
        "</parameter>" + " " * 65 + "</function>",
        "a </parameter",
        "\n</parameter>\n\n<param",
    ],
)
def test_tags_in_a_value_belong_to_it(text):
    assert value_of("text", text) == text
    assert value_of("count", text) == text


def test_tags_around_the_function_may_be_missing():
    text = call(count="3").removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
    assert parsed(text, "qwen3_coder", tools=[TOOL]) == [["f", '{"count": 3}']]
    assert parsed(f"{text}</tool", "qwen3_coder", tools=[TOOL]) == [["f", '{"count": 3}'], "</tool"]


def test_values_may_stand_in_one_line():
    text = "<tool_call><function=f><parameter=count>3</parameter><parameter=text>a</parameter></function></tool_call>"
    assert parsed(text, "qwen3_coder", tools=[TOOL]) == [["f", '{"count": 3, "text": "a"}']]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<tool_call> no", ["<tool_call> no"]),
        ("<function=>\n</function>", ["<function=>\n</function>"]),
        ("<function=f no", ["<function=f no"]),
        ("<function=f>\nno", ["<function=f>\nno"]),
        ("<function=f>\n<parameter=a", ["<function=f>\n<parameter=a"]),
        (
            "<function=f>\n<parameter=text>\nab",
            [["f", '{"text": "ab"}', "…", "<function=f>\n<parameter=text>\nab"]],
        ),
        ("<function=f>\n<parameter=text>\nab\n</parameter>", [["f", '{"text": "ab"}']]),
        ("<function=f>\n<parameter=text>\nab\n</parameter>\n</tool_call> so", [["f", '{"text": "ab"}'], "so"]),
        ("<function=f>\n<parameter=count>\n12", ["<function=f>\n<parameter=count>\n12"]),
        ("<func", ["<func"]),
    ],
)
def test_texts_that_stop_and_texts_that_call_nothing(text, expected):
    assert parsed(text, "qwen3_coder", tools=[TOOL]) == expected


def test_a_missing_closing_tag_merges_no_values():
    text = "<function=f>\n<parameter=text>\na\n<parameter=count>\n3\n</parameter>\n</function>"
    assert parsed(text, "qwen3_coder", tools=[TOOL]) == [["f", '{"text": "a", "count": 3}']]
    text = text.replace("\n", "")
    assert parsed(text, "qwen3_coder", tools=[TOOL]) == [["f", '{"text": "a", "count": 3}']]
    for length in (100, 5000):
        text = call(note="x" * length).replace("<parameter=note>", "<parameter=text>\nb\n\n<parameter=note>")
        (found,) = parsed(text, "qwen3_coder", tools=[TOOL])
        assert json.loads(found[1]) == {"text": "b\n", "note": "x" * length}


def test_malformed_calls_are_closed_and_no_content():
    begin = "<tool_call>\n<function=f>\n<parameter=text>\nls\n</parameter>\n"
    rest = "<parameter=\necho\n</parameter>\n</function>\n</tool_call>"
    assert parsed(f"{begin}{rest}\nSo.", "qwen3_coder", tools=[TOOL]) == [
        ["f", '{"text": "ls"}', "…", begin + rest],
        "So.",
    ]


def test_functions_of_no_tool_get_strings():
    assert parsed(call(count="3"), "qwen3_coder", tools=[Tool("g")]) == [["f", '{"count": "3"}']]


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"properties": 3},
        {"properties": {"a": 3}, "required": "a"},
        {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 1000}}},
        {"properties": {"a": {"type": [3], "enum": 3, "anyOf": 3}}, "$defs": 3},
    ],
)
def test_schemas_of_any_form_are_read(schema):
    assert parsed(call(a="3"), "qwen3_coder", tools=[Tool("f", schema)]) == [["f", '{"a": "3"}']]
