"""Properties of all parsers: pieces do not matter, nothing is lost, little is held back, work is linear."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rounds import rounds
from trtllm_lite.serve.parsers import (
    TOOL_PARSERS,
    Content,
    Reasoning,
    Tool,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
    ToolCallFault,
    make_parser,
    without_faults,
)
from trtllm_lite.serve.parsers.json_scanner import MAX_DEPTH, is_json, is_number
from trtllm_lite.serve.parsers.text_reader import MAX_HELD
from trtllm_lite.serve.parsers.tool_parser import MAX_CALLS

from .parsing import events_of, pieces_of, said

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": ["array", "object"]}}}
TOOLS = [Tool("f", SCHEMA)]
FORMS = sorted({kind: name for name, kind in TOOL_PARSERS.items()}.values())  # one name for each parser
PARSERS = [
    *({"tool_parser": name} for name in FORMS),
    *({"reasoning_parser": name} for name in ("cohere_command3", "granite", "openai_gptoss", "qwen3")),
    {"tool_parser": "hermes", "reasoning_parser": "qwen3"},
    {"tool_parser": "mistral", "reasoning_parser": "mistral"},
    {"tool_parser": "cohere_command3", "reasoning_parser": "cohere_command3"},
]
# What makes or nearly makes a call of some form.
PARTS = st.sampled_from(
    [
        *("<think>", "</think>", "[THINK]", "[/THINK]", "Here is my thought process:", "Here's my response:"),
        *("<tool_call>", "</tool_call>", "<function=f>", "<parameter=a>", "<parameter=b>", "<parameter=c>"),
        *("</parameter>", "</function>", "[TOOL_CALLS]", "[CALL_ID]", "abcdefghi", "[ARGS]", "<|python_tag|>", ";"),
        *("<|start|>", "assistant", "<|channel|>", "analysis", "commentary to=functions.f", "<|message|>", " to=f"),
        *("<|end|>", "<|call|>", "<|constrain|>", "[f(", "a=", "=", ")", "(", "f", "'", "'''", '"', "\\", "\\n"),
        *('{"name": "f", "arguments": ', '{"name": "f", "parameters": ', "{}", '{"a": [1, "x\\u00e9"]}', '{"a": 1}'),
        *('{"arguments": {"a": {}}, "name": "f"', "}", "{", "[", "]", ",", ":", " ", "\n", "\r\n", "-", "0", "1.5e3"),
        *(
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f",
            "<｜tool▁call▁begin｜>f<｜tool▁sep｜>",
        ),
        *("\n```json\n", "\n```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<|tool_calls_section_begin|>"),
        *("<|tool_call_begin|>functions.f:0", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_call|>["),
        *("<|tool_calls_section_end|>", "<|/tool_call|>", "functools[", "<|action_start|><|plugin|>", "<|action_end|>"),
        *(
            "<|START_ACTION|>[",
            "<|END_ACTION|>",
            "Action: ```json",
            '{"tool_name": "f", "parameters": ',
            "<|END_THINKING|>",
        ),
        *(
            "<|START_THINKING|>",
            "<|START_RESPONSE|>",
            "<function_calls>\n",
            "f(a=1",
            "\n</function_calls>",
            "<tool_call>f\n",
        ),
        *("<arg_key>a</arg_key>", "<arg_key>c</arg_key>\n", "<arg_value>", "</arg_value>"),
        *("true", "null", "None", "<", "|", "/", "é", "🙂", "text", "\\ud83d\\ude42"),
    ]
)
WHOLE = st.sampled_from(
    [
        '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "f", "arguments": {"a": "</tool_call>"}}\n</tool_call>\n',
        '{"name": "f", "parameters": {"a": 1}}; {"name": "f", "parameters": {"a": 1}}',
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"arguments": {}, "name": "g"}]',
        "[THINK]hm[/THINK]a[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{}[TOOL_CALLS]f{}",
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=c>\n</parameter>\n</function></tool_call>",
        "[f(a=1, b=['x', {\"k\": None}], c='''q'''), f()]",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant",
        '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a":1}<|call|>',
        " to=functions.f<|channel|>commentary json<|message|>{}<|call|>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {"a": 1}}]<|END_ACTION|>',
        '<function_calls>\nf(a=1)\nf(b={"c": [1]})\n</function_calls>',
        "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>c</arg_key><arg_value>x</arg_value></tool_call>",
        '<|tool_call|>[{"name": "f", "arguments": {"a": 1}}, {"name": "f", "arguments": {"b": [1, 2}}]<|/tool_call|>',
    ]
)
TEXTS = st.lists(st.one_of(PARTS, PARTS, WHOLE), max_size=14).map("".join) | st.text(max_size=30)


STREAMED = {
    "cohere_command3": ('<|START_ACTION|>[{"tool_name": "f", "parameters": {"c": "', '"}}]<|END_ACTION|>'),
    "deepseek_v3": (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"c": "',
        '"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    ),
    "deepseek_v31": ('<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"c": "', '"}<｜tool▁call▁end｜>'),
    "glm45": ("<tool_call>f\n<arg_key>c</arg_key>\n<arg_value>", "</arg_value>\n</tool_call>"),
    "glm47": ("<tool_call>f<arg_key>c</arg_key><arg_value>", "</arg_value></tool_call>"),
    "granite": ('<|tool_call|>[{"name": "f", "arguments": {"c": "', '"}}]'),
    "hermes": ('<tool_call>{"name": "f", "arguments": {"c": "', '"}}'),
    "internlm": ('<|action_start|><|plugin|>\n{"name": "f", "parameters": {"c": "', '"}}<|action_end|>'),
    "kimi_k2": ('<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"c": "', '"}<|tool_call_end|>'),
    "llama3_json": ('{"name": "f", "parameters": {"c": "', '"}}'),
    "mistral": ('[TOOL_CALLS]f[ARGS]{"c": "', '"}'),
    "olmo3": ("<function_calls>\nf(c='", "')\n</function_calls>"),
    "openai": ('<|channel|>commentary to=functions.f<|message|>{"c": "', '"}'),
    "phi4_mini_json": ('<|tool_call|>[{"name": "f", "arguments": {"c": "', '"}}]<|/tool_call|>'),
    "pythonic": ("[f(c='", "')]"),
    "qwen3_coder": ("<function=f>\n<parameter=c>\n", "\n</parameter>\n</function>"),
}
assert set(STREAMED) == set(TOOL_PARSERS)


@st.composite
def cut_texts(draw):
    text = draw(TEXTS)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return text, [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def parser_of(options, **others):
    return make_parser(**{"tools": TOOLS, **options, **others})


@pytest.mark.parametrize("options", PARSERS, ids=str)
@settings(max_examples=rounds(150), deadline=None)
@given(cut_texts(), st.booleans())
def test_pieces_do_not_matter(options, cut, starts_inside):
    text, pieces = cut
    parsers = [parser_of(options, starts_inside=starts_inside) for _ in range(3)]
    found = [
        said(events_of(parser, parts)) for parser, parts in zip(parsers, (pieces, [text], list(text)), strict=True)
    ]
    assert found[0] == found[1] == found[2]
    assert len({parser.has_tool_calls for parser in parsers}) == 1
    assert len({parser.is_inside_tool_call for parser in parsers}) == 1


@pytest.mark.parametrize("name", FORMS)
@settings(deadline=None)
@given(TEXTS)
def test_content_is_part_of_the_text_in_order(name, text):
    """Nothing is invented, and what is not content belongs to calls or to their markers."""
    rest = iter(text)
    events = events_of(parser_of({"tool_parser": name}), [text])
    content = "".join(event.text for event in events if isinstance(event, Content | Reasoning))
    assert all(character in rest for character in content)
    if not any(isinstance(event, ToolCallBegin) for event in events) and name != "openai":
        assert content == text


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=rounds(50), deadline=None)
@given(TEXTS)
def test_a_whole_answer_has_whole_calls_and_content_alone(name, text):
    """The answer ended by itself, or was cut off; both are tested."""
    for is_cut in (False, True):
        parser = parser_of({"tool_parser": name})
        kinds = [type(event) for event in without_faults([*parser.push(text), *parser.finish(is_cut=is_cut)])]
        assert ToolCallFault not in kinds
        assert kinds.count(ToolCallBegin) == kinds.count(ToolCallEnd)


@st.composite
def broken_calls(draw):
    """A call's text of some form, of which a piece is missing, doubled or replaced."""
    name = draw(st.sampled_from(FORMS))
    begin, end = STREAMED[name]
    text = f"{begin}xy{end}"
    first, last = sorted(draw(st.lists(st.integers(0, len(text)), min_size=2, max_size=2)))
    return name, text[:first] + draw(
        st.sampled_from(["", text[first:last] * 2, '"', "}", "<", "\\", "\n", "1,"])
    ) + text[last:]


@settings(max_examples=rounds(500), deadline=None)
@given(broken_calls())
def test_broken_calls_are_content_or_have_arguments_that_are_json(broken):
    name, text = broken
    events = events_of(parser_of({"tool_parser": name}), [text])  # said() asserts the rest
    assert all(isinstance(json.loads(item[1]), dict) for item in said(events) if isinstance(item, list))


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    ),
    st.integers(0, 3),
)
def test_json_is_read_as_json(value, indent):
    text = json.dumps(value, indent=indent or None, ensure_ascii=indent < 2)
    assert is_json(text)
    assert is_json(f" {text}\n")


@settings(deadline=None)
@given(st.lists(st.sampled_from([*'{}[],:"\\/ue019.-+ tnfal\n\t', "true", "null", '"a"', '"a":', "1e5"])).map("".join))
def test_what_is_no_json_is_not(text):
    try:
        json.loads(text, parse_constant=lambda _: 1 / 0)
    except (ValueError, ZeroDivisionError):
        assert not is_json(text)
    else:
        assert is_json(text)


@settings(deadline=None)
@given(st.text("01289.-+eE", max_size=8))
def test_numbers_are_the_json_that_begins_as_they_do(text):
    assert is_number(text) == is_json(text)


def test_nesting_is_bounded():
    for brackets in ("[]", "{}"):
        begin = "[" if brackets == "[]" else '{"a":'
        inner = "" if brackets == "[]" else "1"
        assert is_json(begin * MAX_DEPTH + inner + brackets[1] * MAX_DEPTH)
        assert not is_json(begin * (MAX_DEPTH + 1) + inner + brackets[1] * (MAX_DEPTH + 1))
    text = '<tool_call>{"name": "f", "arguments": ' + '{"a":' * 100_000
    assert said(events_of(parser_of({"tool_parser": "hermes"}), [text])) == [text]


CALLS = {
    "hermes": ('<tool_call>{{"name": "f", "arguments": {}}}</tool_call>', "{}"),
    "llama3_json": ('<|python_tag|>{{"name": "f", "parameters": {}}}', "{}"),
    "mistral": ("[TOOL_CALLS]f[ARGS]{}", "{}"),
    "openai": ("<|channel|>commentary to=functions.f<|message|>{}<|call|>", "{}"),
    "qwen3_coder": ("<function=f>\n{}</function>", ""),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_bounded_in_number(name):
    form, empty = CALLS[name]
    call = form.format(empty)
    events = said(events_of(parser_of({"tool_parser": name}), [call * 1000]))
    assert events == [["f", "{}"]] * MAX_CALLS + [call * (1000 - MAX_CALLS)]


@pytest.mark.parametrize(
    ("name", "separator", "call", "begin"),
    [
        ("mistral", ", ", '{"name": "f"}', "[TOOL_CALLS]["),
        ("pythonic", ", ", "f()", "["),
        ("llama3_json", ";", '{"name": "f", "parameters": {}}', ""),
    ],
)
def test_calls_of_one_list_are_bounded_in_number(name, separator, call, begin):
    calls = separator.join([call] * 1000)
    *found, rest = said(events_of(parser_of({"tool_parser": name}), [begin + calls]))
    assert found == [["f", "{}"]] * MAX_CALLS
    assert rest == separator + separator.join([call] * (1000 - MAX_CALLS))


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("name", sorted(STREAMED))
def test_arguments_come_out_as_they_arrive(name, size):
    """At most a marker's length of the pushed text is held back, and each push processes only the new text."""
    parser, num_out, num_in = parser_of({"tool_parser": name}), 0, 0
    begin, end = STREAMED[name]
    parser.push(begin)
    reader = parser._tools
    for piece in pieces_of("xy < [ <| </para" * 2000, size):
        num_in += len(piece)
        num_out += sum(len(event.text) for event in parser.push(piece) if isinstance(event, ToolCallArguments))
        assert num_in - num_out < 64
        assert len(reader._text) < len(piece) + 64
    parser.push(end)
    parser.finish()
    assert parser.has_tool_calls
    assert not parser.is_inside_tool_call


HOSTILE = {
    "a call without a name": ("hermes", '<tool_call>{"arguments": {"a": "', "x"),
    "a call of keys that mean nothing": ("llama3_json", '{"name": "f", "a": ["', "x"),
    "space": ("hermes", "<tool_call>", " \n"),
    "space at the beginning": ("llama3_json", "", " "),
    "a call as a list": ("mistral", "[TOOL_CALLS][", " "),
    "space before a call": ("pythonic", "[", "\n"),
    "a head": ("openai", "<|channel|>", "final<|constrain|>"),
    "a value that is no string": ("qwen3_coder", "<function=f>\n<parameter=a>\n", "1</parameter> "),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_held_is_bounded(case):
    """A text without end is content as soon as too much of it would be held back."""
    name, begin, endless = HOSTILE[case]
    text = begin + endless * (2 * MAX_HELD // len(endless))
    found = []
    for size in (1 << 18, len(text)):
        parser, num_out, num_in, events = parser_of({"tool_parser": name}), 0, 0, []
        for piece in pieces_of(text, size):
            events += parser.push(piece)
            num_in, num_out = num_in + len(piece), sum(len(getattr(event, "text", "")) for event in events)
            assert num_in - num_out <= MAX_HELD + 64
        events += parser.finish()
        found.append(said(events_of(parser_of({"tool_parser": name}), pieces_of(text, size))))
        content = "".join(event.text for event in events if isinstance(event, Content))
        assert text.endswith(content)
        assert len(content) > 2 * MAX_HELD - 64
    assert found[0] == found[1]


def test_space_before_thoughts_is_bounded():
    parser = make_parser(reasoning_parser="qwen3")
    events = events_of(parser, [" " * (MAX_HELD + 1), "<think>"])
    assert said(events) == [" " * (MAX_HELD + 1) + "<think>"]
