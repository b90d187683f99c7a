"""Bodies of /v1/messages are read as conversations; content that these cannot have is an error."""

from typing import Any

import msgspec
import pytest

from trtllm_lite.serve.api_error import ApiError
from trtllm_lite.serve.bodies import decode
from trtllm_lite.serve.bodies.chat import ChatBody
from trtllm_lite.serve.bodies.messages import MessagesBody, to_chat

HI = [{"role": "user", "content": "Hi"}]
F_CALL = {"id": "t1", "name": "f", "input": {}}


def chat(**body: Any) -> ChatBody:
    return to_chat(decode(msgspec.json.encode({"messages": HI, "max_tokens": 9, **body}), MessagesBody))


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def test_blocks_become_messages() -> None:
    messages = [
        {"role": "user", "content": [{**text("Hi"), "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Well.", "signature": ""},
                text("One moment."),
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
                {"type": "tool_use", "id": "t2", "name": "g", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "2"},
                {"type": "tool_result", "tool_use_id": "t2", "content": [text("no g")], "is_error": True},
                text("Go on."),
            ],
        },
    ]
    assert chat(messages=messages, system=[text("Be brief.")]).messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": "One moment.",
            "reasoning_content": "Well.",
            "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
                {"id": "t2", "type": "function", "function": {"name": "g", "arguments": {}}},
            ],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "2"},
        {"role": "tool", "tool_call_id": "t2", "content": "error:\nno g"},
        {"role": "user", "content": "Go on."},
    ]


def test_fields_have_the_meaning_of_those_of_chats() -> None:
    made = chat(
        model="m",
        stop_sequences=["x"],
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        stream=True,
        tools=[{"name": "f", "description": "d", "input_schema": {"type": "object"}, "strict": True}],
        tool_choice={"type": "tool", "name": "f", "disable_parallel_tool_use": True},
        output_config={"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
        metadata={"user_id": "u"},
    )
    assert (made.model, made.max_tokens, made.stop, made.stream) == ("m", 9, ["x"], True)
    assert (made.temperature, made.top_p, made.top_k, made.reasoning_effort) == (0.5, 0.9, 3, "low")
    assert made.guided() is not None
    assert made.tools is not None
    function = made.tools[0].function
    assert (function.name, function.description, function.parameters) == ("f", "d", {"type": "object"})
    assert msgspec.to_builtins(made.tool_choice) == {"type": "function", "function": {"name": "f"}}
    assert made.parallel_tool_calls is False


def test_what_was_done_elsewhere_is_kept_as_words() -> None:
    search = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "é"}}
    page = {"type": "web_search_result", "url": "https://x", "encrypted_content": "Zm9v"}
    found = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [page]}
    redacted, call = {"type": "redacted_thinking", "data": "Zm9v"}, {"type": "tool_use", **F_CALL}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "tool_reference", "tool_name": "g"}]}
    plain = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "A."}}
    answer = [redacted, search, found, text("Yes."), call]
    given = [*HI, {"role": "assistant", "content": answer}, {"role": "user", "content": [result, plain]}]
    assert [message["content"] for message in chat(messages=given).messages] == [
        "Hi",
        '[server_tool_use] {"name": "web_search", "input": {"query": "é"}}\n'
        '[web_search_tool_result] {"tool_use_id": "s1", "content": [{"type": "web_search_result", "url": "https://x"}]}\nYes.',
        '[tool_reference] {"tool_name": "g"}',
        '[document] {"source": {"type": "text", "media_type": "text/plain", "data": "A."}}',
    ]


@pytest.mark.parametrize(("given", "meant"), [("auto", "auto"), ("any", "required"), ("none", "none")])
def test_choices_of_tools_have_other_names(given: str, meant: str) -> None:
    assert chat(tool_choice={"type": given}).tool_choice == meant


def test_templates_are_told_whether_to_think() -> None:
    assert chat().chat_template_kwargs is None
    assert chat(thinking={"type": "adaptive"}).chat_template_kwargs is None
    assert chat(thinking={"type": "disabled"}).chat_template_kwargs == {"enable_thinking": False}
    enabled = {"type": "enabled", "budget_tokens": 1024}
    assert chat(thinking=enabled).chat_template_kwargs == {"enable_thinking": True}


def test_an_answer_that_has_begun_goes_on() -> None:
    made = chat(messages=[*HI, {"role": "assistant", "content": "Hello"}])
    assert (made.continue_final_message, made.add_generation_prompt) == (True, False)
    assert (chat().continue_final_message, chat().add_generation_prompt) == (False, True)


@pytest.mark.parametrize(
    ("wish", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"container": "c"}, "container"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"mcp_servers": [{"type": "url", "url": "https://x", "name": "x"}]}, "mcp_servers"),
        ({"output_format": {"type": "json_schema", "schema": {}}}, "output_format"),
        ({"tools": [{"type": "bash", "name": "bash"}, {"type": "bash-2", "name": "f"}]}, "tools[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        (
            {"tools": [{"name": "f", "input_schema": {}, "allowed_callers": ["code_execution_20260120"]}]},
            "tools[0].allowed_callers",
        ),
        ({"thinking": {"type": "adaptive", "colour": "red"}}, "thinking.colour"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "assistant", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{}]}]}]},
            "messages[0].content[0].content[0].type",
        ),
        (
            {
                "messages": [
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}
                ]
            },
            "messages",
        ),
    ],
)
def test_what_messages_cannot_have_is_an_error_that_names_it(wish: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat(**wish)
    assert (caught.value.status, caught.value.param) == (400, param)
