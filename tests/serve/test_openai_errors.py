"""OpenAI's own client raises the exceptions that the server's errors stand for."""

import sys

import httpx
import openai
import pytest

QUESTION = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "weather"}}
BAD_TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "nonsense"}}}


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"extra_body": {"colour": "red"}}, "colour", "unknown_parameter"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage", "unknown_parameter"),
        ({"temperature": "hot"}, "temperature", "invalid_type"),
        ({"temperature": -1}, "temperature", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": 10**9}, "n", "invalid_value"),
        ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [{"content": "no role"}]}, "messages", "invalid_value"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages", "invalid_value"),
        ({"extra_body": {"chat_template": "{{ 1 / 0 }}"}}, "chat_template", "invalid_value"),
        ({"extra_body": {"chat_template_kwargs": {"messages": 1}}}, "chat_template_kwargs", "invalid_value"),
        ({"messages": "text"}, "messages", "invalid_type"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
        ({"tools": [TOOL], "tool_choice": {**TOOL, "function": {"name": "x"}}}, "tool_choice", "invalid_value"),
        ({"response_format": {"type": "xml"}}, "response_format", "invalid_value"),
        ({"response_format": {"type": "regex", "regex": "("}}, "response_format", "invalid_value"),
        ({"extra_body": {"guided_regex": "("}}, "guided_regex", "invalid_value"),
        ({"tools": [BAD_TOOL], "tool_choice": "required"}, "tools", "invalid_value"),
        ({"messages": [{"role": "user", "content": "far " * 600}]}, "messages", "context_length_exceeded"),
    ],
)
def test_a_wrong_field_is_named(client, fields, param, code):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": "smollm2", "messages": QUESTION, **fields})
    assert (caught.value.param, caught.value.code, caught.value.type) == (param, code, "invalid_request_error")


def test_a_prompt_that_is_too_long_is_measured(client):
    with pytest.raises(openai.BadRequestError, match=r"600 tokens.*max_input_len 512") as caught:
        client.completions.create(model="smollm2", prompt=[5] * 600)
    assert (caught.value.param, caught.value.code) == ("prompt", "context_length_exceeded")
    with pytest.raises(openai.BadRequestError, match=r"500 tokens.*1000 more.*1024 tokens") as caught:
        client.completions.create(model="smollm2", prompt=[5] * 500, max_tokens=1000)
    assert caught.value.code == "context_length_exceeded"


def test_another_method_is_named(server):
    response = httpx.delete(f"{server.address}/v1/models")
    assert (response.status_code, response.headers["Allow"]) == (405, "GET, HEAD")


def test_an_unknown_model_is_not_found(client):
    for ask in (
        lambda: client.chat.completions.create(model="other", messages=QUESTION),
        lambda: client.models.retrieve("other"),
    ):
        with pytest.raises(openai.NotFoundError) as caught:
            ask()
        assert (caught.value.param, caught.value.code) == ("model", "model_not_found")
    assert client.models.retrieve("smollm2").id == "smollm2"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b'{"model": ', "invalid_json"),
        (b'{"model": "\xff"}', "invalid_json"),
        (b'{"model": "\\ud800"}', "invalid_json"),
        (b"[]", "invalid_type"),
        (b"null", "invalid_type"),
        (b"{}", "missing_required_parameter"),
    ],
)
def test_a_body_that_is_no_request_is_refused(server, body, code):
    response = httpx.post(
        f"{server.address}/v1/chat/completions", content=body, headers={"content-type": "application/json"}
    )
    assert (response.status_code, response.json()["error"]["code"]) == (400, code)


@pytest.mark.parametrize(
    ("before", "opening", "closing", "after"),
    [
        (b'{"messages": ', b"[", b"]", b"}"),
        (b'{"messages": [{"a": ', b"[", b"]", b"}]}"),
        (b'{"x": ', b'{"a":', b"}", b"}"),
    ],
)
def test_a_body_of_deeply_nested_values_is_refused(server, before, opening, closing, after):
    """Before 3.14, Python reads JSON only to its recursion limit; since then the body gets the error of a flat one."""

    def refused(depth):
        body = before + opening * depth + b"[]" + closing * depth + after
        response = httpx.post(
            f"{server.address}/v1/chat/completions", content=body, headers={"content-type": "application/json"}
        )
        assert response.status_code == 400
        return response.json()["error"]["code"]

    flat = refused(1)
    assert flat != "invalid_json"
    assert refused(10_000) == (flat if sys.version_info >= (3, 14) else "invalid_json")
