"""Messages and tools come to chat templates in the forms that published ones take."""

import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from trtllm_lite.runtime.text.chat import ChatTemplate
from trtllm_lite.serve.api_error import ApiError
from trtllm_lite.serve.bodies.chat import ChatBody
from trtllm_lite.serve.conversation import render

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
# What gpt-oss's template says of an assistant's turn and of a tool.
HARMONY = (
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% if '<|channel|>' in m.content %}{{ raise_exception('channels') }}{% endif %}"
    "{% if m.content and m.thinking %}{{ raise_exception('both') }}"
    "{% elif m.content or m.thinking %}<think>{{ m.content or m.thinking }}{% endif %}"
    "{{ m.tool_calls[0].function.arguments | tojson }}{% endif %}{% endfor %}"
    "{% for tool in tools or [] %}{{ '// ' + tool.function.description + '\n' }}{{ tool.function.name }}{% endfor %}"
)


def rendered(template: str, **fields: Any) -> str:
    """The prompt that a template makes of a body of these fields."""
    tokenizer = SimpleNamespace(chat_template=ChatTemplate({"default": template}, {}))
    model = SimpleNamespace(required_tokenizer=lambda: tokenizer)
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
    """Templates that can tell that there is none are told so."""
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
    tools.append({"type": "function", "function": {"name": "g"}})  # which this template cannot take as it is
    makes = "{{ tools | tojson }}{% for tool in tools %}{{ tool.function.description + '' }}{% endfor %}"
    told = [tools[0], {"type": "function", "function": {"name": "g", "description": ""}}]
    assert rendered(makes, messages=user, tools=tools) == json.dumps(told) + "Does f."


def test_what_a_template_refuses_is_an_error_of_the_messages() -> None:
    with pytest.raises(ApiError, match="refuses these messages: channels"):
        rendered(HARMONY, messages=[answer(content="<|channel|>")])
