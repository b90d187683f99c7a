"""Thoughts, then content, then calls."""

import pytest

from trtllm_lite.errors import ArgumentError
from trtllm_lite.serve.parsers import make_parser

from .parsing import TOOLS, parsed, said


@pytest.mark.parametrize("name", ["qwen3", "deepseek_r1"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>\nI see.\n</think>\n\nYes.", [("thinks", "I see.\n"), "Yes."]),
        ("\n<think>a</think> b", [("thinks", "a"), " b"]),
        ("<think>\n\n</think>\n\nYes.", ["Yes."]),
        ("<think>1 < 2 </thin", [("thinks", "1 < 2 </thin")]),
        ("Yes.", ["Yes."]),
        (" <thinking> no", [" <thinking> no"]),
        ("<thi", ["<thi"]),
        ("Say <think> and </think>", ["Say <think> and </think>"]),
        ("<think>a</think>b</think><think>c", [("thinks", "a"), "b</think><think>c"]),
    ],
)
def test_thoughts_stand_in_tags_at_the_beginning(name, text, expected):
    assert parsed(text, reasoning_parser=name) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I see.</think>\n\nYes.", [("thinks", "I see."), "Yes."]),
        ("\n  I see.</think>Yes.", [("thinks", "  I see."), "Yes."]),
        ("<think>\nI see.</think>Yes.", [("thinks", "I see."), "Yes."]),
        ("</think>\n\nYes.", ["Yes."]),
        ("I see", [("thinks", "I see")]),
        ("", []),
    ],
)
def test_a_prompt_may_have_opened_the_thoughts(text, expected):
    assert parsed(text, reasoning_parser="deepseek_r1", starts_inside=True) == expected


def test_granites_markers_are_sentences():
    text = "Here's my thought process:\nHere is my response? No.\nHere is my response:\nYes."
    assert parsed(text, reasoning_parser="granite") == [("thinks", "Here is my response? No.\n"), "Yes."]


def test_mistrals_markers_are_special_tokens():
    assert parsed("[THINK]a[/THINK]b", reasoning_parser="mistral") == [("thinks", "a"), "b"]


def test_thoughts_call_nothing():
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert parsed(f"<think>{call}</think>\n\nSo:\n{call}", "hermes", reasoning_parser="qwen3") == [
        ("thinks", call),
        "So:\n",
        ["f", "{}"],
    ]


@pytest.mark.parametrize("begin", ["<think>", ""])
def test_calls_in_thoughts_that_never_end_are_calls(begin):
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    options = {"reasoning_parser": "qwen3", "starts_inside": not begin}
    called = ["f", '{"a": 1}']
    assert parsed(f"{begin}Hm.{call}", "hermes", **options) == [("thinks", f"Hm.{call}"), called]
    tagged = "<tool_call><function=f>\n<parameter=a>\n1\n</parameter>\n</function></tool_call>"
    text = f"Hm. <tool_call> no. {tagged}"
    assert parsed(begin + text, "qwen3_coder", **options) == [("thinks", text), ["f", '{"a": "1"}']]
    broken = call.replace("1", "[1,]")
    assert parsed(f"{begin}{call}{broken}", "hermes", **options) == [("thinks", call + broken)]
    cut = make_parser(tool_parser="hermes", tools=TOOLS, **options)
    assert said([*cut.push(begin + call), *cut.finish(is_cut=True)]) == [("thinks", call)]


def test_marks_around_answers_are_dropped():
    text = "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>"
    for tool_parser in (None, "cohere_command3"):
        assert parsed(text, tool_parser, reasoning_parser="cohere_command3") == [("thinks", "Hm."), "Yes."]
    assert parsed("<|START_RESPONSE|>Yes.", reasoning_parser="cohere_command3") == ["Yes."]


def test_without_parsers_all_is_content():
    assert parsed("<think>a</think>") == ["<think>a</think>"]


def test_names_of_no_parser_are_refused():
    with pytest.raises(ArgumentError, match=r"tool_parser is 'gpt': expected one of cohere_command3, .*llama3_json"):
        make_parser(tool_parser="gpt")
    with pytest.raises(ArgumentError, match=r"reasoning_parser is 'r1': expected one of cohere_command3, .*qwen3"):
        make_parser(reasoning_parser="r1")
