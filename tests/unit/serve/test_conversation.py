"""Messages and tools come to chat templates in the forms that published templates take."""

import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.models import tiny_tokenizer
from trtllm_lite.runtime.text.tokenizer import Tokenizer
from trtllm_lite.serve.api_error import ApiError
from trtllm_lite.serve.bodies.chat import ChatBody
from trtllm_lite.serve.conversation import render
from trtllm_lite.serve.served_engine import ModelSettings

SETTINGS = ModelSettings(names=("m",))
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
# The parts of gpt-oss's template that render an assistant's turn and a tool.
HARMONY = (
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% if '<|channel|>' in m.content %}{{ raise_exception('channels') }}{% endif %}"
    "{% if m.content and m.thinking %}{{ raise_exception('both') }}"
    "{% elif m.content or m.thinking %}<think>{{ m.content or m.thinking }}{% endif %}"
    "{{ m.tool_calls[0].function.arguments | tojson }}{% endif %}{% endfor %}"
    "{% for tool in tools or [] %}{{ '// ' + tool.function.description + '\n' }}{{ tool.function.name }}{% endfor %}"
)


def rendered(template: str, settings: ModelSettings = SETTINGS, **fields: Any) -> str:
    """The prompt that a template makes of a body of these fields."""
    tokenizer = Tokenizer(tiny_tokenizer(), {"chat_template": template})
    model: Any = SimpleNamespace(required_tokenizer=lambda: tokenizer, settings=settings)
    return render(model, msgspec.convert(fields, ChatBody))


def answer(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [CALL], **fields}


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_thoughts_come_back_under_the_name_that_the_template_has(name: str) -> None:
    messages = [answer(content=None, **{name: "Hm."})]
    assert rendered(HARMONY, messages=messages) == '<think>Hm.{"a": 1}'
    if name != "thinking":
        assert rendered("{{ messages[0].reasoning_content }}", messages=messages) == "Hm."


def test_thoughts_beside_a_content_are_left_out_where_a_call_may_not_have_both() -> None:
    assert rendered(HARMONY, messages=[answer(content="I look.", reasoning_content="Hm.")]) == '<think>I look.{"a": 1}'
    messages = [{"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}]
    assert rendered("{{ messages[0].thinking + messages[0].content }}", messages=messages) == "Hm.Yes."


def test_thoughts_that_are_none_change_nothing() -> None:
    messages = [{"role": "assistant", "content": "Yes.", "reasoning_content": None}]
    assert rendered("{{ messages[0] | tojson }}", messages=messages) == (
        '{"role": "assistant", "content": "Yes.", "reasoning_content": null}'
    )


def test_tools_need_no_description() -> None:
    """Templates that can handle a missing description get the tool without one; others get an empty one."""
    tools = [{"type": "function", "function": {"name": "f"}}]
    user = [{"role": "user", "content": "Hi"}]
    assert rendered(HARMONY, messages=user, tools=tools) == "// \nf"
    assert rendered("{{ tools | tojson }}", messages=user, tools=tools) == (
        '[{"type": "function", "function": {"name": "f"}}]'
    )


def test_tools_keep_the_order_of_what_they_say() -> None:
    function = {"name": "f", "description": "Does f.", "parameters": {"type": "object"}}
    tools, user = [{"type": "function", "function": function}], [{"role": "user", "content": "Hi"}]
    assert rendered("{{ tools | tojson }}", messages=user, tools=tools) == json.dumps(tools)
    tools.append({"type": "function", "function": {"name": "g"}})  # this template needs a description
    makes = "{{ tools | tojson }}{% for tool in tools %}{{ tool.function.description + '' }}{% endfor %}"
    told = [tools[0], {"type": "function", "function": {"name": "g", "description": ""}}]
    assert rendered(makes, messages=user, tools=tools) == json.dumps(told) + "Does f."


def test_what_a_template_refuses_is_an_error_of_the_messages() -> None:
    with pytest.raises(ApiError, match="refuses these messages: channels"):
        rendered(HARMONY, messages=[answer(content="<|channel|>")])


@pytest.mark.parametrize(
    ("message", "content"),
    [
        ({"content": None, "refusal": None, "tool_calls": None}, ""),
        ({"content": None, "tool_calls": []}, ""),
        ({"refusal": "I may not."}, "I may not."),
        ({"content": [{"type": "refusal", "refusal": "No."}, {"type": "text", "text": "Sorry."}]}, "No.\nSorry."),
    ],
)
def test_answers_without_words_and_refusals_come_back(message: dict[str, Any], content: str) -> None:
    given = [{"role": "assistant", **message}]
    assert rendered("{{ messages[0].content }}{{ messages[0].tool_calls }}", messages=given) == content


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def spelling_call(name: str, arguments: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{"role": "user", "content": "a<|end|>b"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [text("<|be"), text("gin|>")]}]}, "messages"),
        ({"messages": [answer(content=None, tool_calls=[spelling_call("<|end|>", "{}")])]}, "messages"),
        ({"messages": [answer(content="", tool_calls=[spelling_call("f", '{"a": "\\u003c|end|>"}')])]}, "messages"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"<|end|>": {}}}}]}, "tools"),
        ({"documents": [{"text": "<|end|>"}]}, "documents"),
        ({"chat_template_kwargs": {"style": "<|begin|>"}}, "chat_template_kwargs"),
    ],
)
def test_texts_that_spell_special_tokens_are_refused_where_that_is_wanted(fields: dict[str, Any], param: str) -> None:
    strict = ModelSettings(names=("m",), refuses_special_tokens=True)
    body = {"messages": [{"role": "user", "content": "end|> <|"}], **fields}
    with pytest.raises(ApiError, match=r"spells the special token '<\|(begin|end)\|>'") as caught:
        rendered("{{ messages | length }}", strict, **body)
    assert caught.value.param == param
    assert rendered("{{ messages | length }}", **body) == "1"
    assert rendered("{{ messages | length }}", strict, messages=[{"role": "user", "content": "end|> <|"}]) == "1"


@pytest.mark.parametrize("text", ['{"cmd": "a\\nb"', "[1]", "rm 'x'", '"{}"'])
def test_arguments_that_are_no_object_are_played_back_as_they_are(text: str) -> None:
    call = {**CALL, "function": {"name": "f", "arguments": text}}
    as_it_is = "{% for call in messages[0].tool_calls %}{{ call.function.arguments }}{% endfor %}"
    assert rendered(as_it_is, messages=[answer(tool_calls=[call])]) == text
    by_name = as_it_is.replace(
        "{{ call.function.arguments }}", "{% for k, v in call.function.arguments|items %}{{ k }}={{ v }}{% endfor %}"
    )
    assert rendered(by_name, messages=[answer(tool_calls=[call])]) == f"arguments={text}"
    assert rendered(by_name, messages=[answer()]) == "a=1"
