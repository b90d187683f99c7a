"""Bodies of /v1/responses are read as conversations; content that these cannot have is an error."""

from typing import Any

import msgspec
import pytest

from trtllm_lite.serve.api_error import ApiError
from trtllm_lite.serve.bodies import decode
from trtllm_lite.serve.bodies.chat import ChatBody
from trtllm_lite.serve.bodies.responses import ResponsesBody, to_chat


def chat(**body: Any) -> ChatBody:
    return to_chat(decode(msgspec.json.encode({"input": "Hi", **body}), ResponsesBody))


def test_a_text_is_the_users_message_behind_the_instructions() -> None:
    assert chat(instructions="Be brief.").messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]


def test_what_the_assistant_thought_said_and_called_is_one_message() -> None:
    items = [
        {"role": "user", "content": "Hi"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Well."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "One moment."}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": ""},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "2"}]},
        {"type": "function_call_output", "call_id": "c2", "output": "3"},
        {"role": "assistant", "content": "Done."},
    ]
    assert chat(input=items).messages == [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": "One moment.",
            "reasoning_content": "Well.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
                {"id": "c2", "type": "function", "function": {"name": "g", "arguments": ""}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
        {"role": "tool", "tool_call_id": "c2", "content": "3"},
        {"role": "assistant", "content": "Done."},
    ]


def test_instructions_that_follow_one_another_are_one_message() -> None:
    items = [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    assert chat(instructions="Be brief.", input=items).messages == [
        {"role": "system", "content": "Be brief.\nBe kind."},
        {"role": "user", "content": "Hi"},
    ]


def test_encrypted_reasoning_is_no_thought_that_a_template_could_take() -> None:
    items = [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
        {"role": "user", "content": "a"},
    ]
    assert [message["role"] for message in chat(input=items).messages] == ["user"]


def test_fields_have_the_meaning_of_those_of_chats() -> None:
    schema = {"type": "object"}
    made = chat(
        model="m",
        max_output_tokens=5,
        temperature=0.5,
        top_k=3,
        stream=True,
        reasoning={"effort": "low", "summary": "auto"},
        text={"format": {"type": "json_schema", "name": "s", "schema": schema, "strict": True}},
        tools=[{"type": "function", "name": "f", "parameters": schema, "strict": True}],
        tool_choice={"type": "function", "name": "f"},
        parallel_tool_calls=False,
        include=["reasoning.encrypted_content"],
        chat_template_kwargs={"enable_thinking": False},
    )
    assert (made.model, made.max_tokens, made.temperature, made.top_k, made.stream) == ("m", 5, 0.5, 3, True)
    assert (made.reasoning_effort, made.chat_template_kwargs) == ("low", {"enable_thinking": False})
    assert made.response_format == {
        "type": "json_schema",
        "json_schema": {"name": "s", "schema": schema, "strict": True},
    }
    assert made.guided() is not None
    assert made.tools is not None
    assert (made.tools[0].function.name, made.tools[0].function.strict) == ("f", True)
    assert msgspec.to_builtins(made.tool_choice) == {"type": "function", "function": {"name": "f"}}
    assert made.parallel_tool_calls is False


def test_what_was_done_elsewhere_is_kept_as_words() -> None:
    items = [
        {"role": "user", "content": "Hi"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "é"}},
        {"type": "compaction", "encrypted_content": "Zm9v"},
        {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "a"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "done"},
    ]
    assert [(message["role"], message["content"]) for message in chat(input=items).messages] == [
        ("user", "Hi"),
        (
            "assistant",
            '[web_search_call] {"action": {"type": "search", "query": "é"}}\n[compaction] {}\n'
            '[custom_tool_call] {"call_id": "c", "name": "patch", "input": "a"}',
        ),
        ("user", '[custom_tool_call_output] {"call_id": "c", "output": "done"}'),
    ]


@pytest.mark.parametrize(
    ("wish", "param"),
    [
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"n": 2}, "n"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"reasoning": {"colour": "red"}}, "reasoning.colour"),
        ({"text": {"style": "terse"}}, "text.style"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"tools": [{"type": "web"}]}, "tools[0].type"),
        ({"input": [{"type": "computer_call_output", "call_id": "c", "output": {}}]}, "input[0].type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": {"type": "web_search_preview"}}, "tool_choice.type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
    ],
)
def test_what_responses_cannot_have_is_an_error_that_names_it(wish: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat(**wish)
    assert (caught.value.status, caught.value.param) == (400, param)
