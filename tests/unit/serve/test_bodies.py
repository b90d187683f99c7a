"""Reading of bodies drops hints and neutral values, refuses demands by name, and reports the fields it ignores."""

from typing import Any

import msgspec
import pytest

from tests.unit.serve.served import Asker, ask
from trtllm_lite.errors import ArgumentError
from trtllm_lite.serve.api_error import ApiError
from trtllm_lite.serve.bodies import Body, decode
from trtllm_lite.serve.bodies.chat import ChatBody
from trtllm_lite.serve.bodies.completion import CompletionBody
from trtllm_lite.serve.bodies.fields import ROWS, rows_of
from trtllm_lite.serve.bodies.leniency import Ignored, structs_of
from trtllm_lite.serve.bodies.messages import MessagesBody, PromptFields
from trtllm_lite.serve.bodies.responses import ResponsesBody
from trtllm_lite.serve.openapi import describe
from trtllm_lite.serve.routes import ROUTES

NEEDED: dict[type, dict[str, Any]] = {
    ChatBody: {"messages": []},
    CompletionBody: {"prompt": ""},
    ResponsesBody: {"input": ""},
    PromptFields: {"messages": []},
    MessagesBody: {"messages": [], "max_tokens": 1},
}
FUNCTION = {"type": "function", "name": "f", "parameters": {}}
CLAUDES = {"name": "f", "input_schema": {}}


def decoded(kind: type[Body], ignored: Ignored | None = None, **fields: Any) -> Body:
    return decode(msgspec.json.encode({**NEEDED[kind], **fields}), kind, ignored)


PREDICTION = {"type": "content", "content": [{"type": "text", "text": "a"}]}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (ChatBody, {"verbosity": "high", "prediction": PREDICTION, "prompt_cache_retention": "in_memory"}),
        (ChatBody, {"function_call": "auto", "functions": [], "modalities": ["text"], "audio": None, "echo": False}),
        (ChatBody, {"spaces_between_special_tokens": True, "client_metadata": {}, "top_p": None}),
        (CompletionBody, {"suffix": "", "spaces_between_special_tokens": True}),
        (ResponsesBody, {"background": False, "truncation": "auto", "n": 1, "max_tool_calls": 1, "top_logprobs": 0}),
        (ResponsesBody, {"include": ["web_search_call.action.sources", "reasoning.encrypted_content"], "prompt": None}),
        (PromptFields, {"speed": "fast", "anthropic_beta": ["a"], "context_management": {"edits": []}}),
        (MessagesBody, {"inference_geo": "eu", "container": None, "mcp_servers": []}),
    ],
)
def test_hints_and_neutral_values_are_dropped_without_a_word(kind: type[Any], fields: dict[str, Any]) -> None:
    ignored = Ignored()
    assert decoded(kind, ignored, **fields) == decoded(kind)
    assert ignored.places == []


def test_hints_within_fields_are_dropped() -> None:
    hints = {"text": {"verbosity": "high", "format": None}, "reasoning": {"effort": "low", "generate_summary": "auto"}}
    assert decoded(ResponsesBody, **hints) == decoded(ResponsesBody, text={}, reasoning={"effort": "low"})
    hints = {"thinking": {"type": "adaptive", "display": "omitted"}, "output_config": {"task_budget": {"total": 9}}}
    assert decoded(MessagesBody, **hints) == decoded(MessagesBody, thinking={"type": "adaptive"}, output_config={})


@pytest.mark.parametrize(
    ("kind", "fields", "param"),
    [
        (ChatBody, {"functions": [{"name": "f"}]}, "functions"),
        (ChatBody, {"function_call": {"name": "f"}}, "function_call"),
        (ChatBody, {"best_of": 2}, "best_of"),
        (ChatBody, {"modalities": ["text", "audio"]}, "modalities"),
        (ChatBody, {"audio": {"voice": "a"}}, "audio"),
        (ChatBody, {"use_beam_search": True}, "use_beam_search"),
        (ChatBody, {"spaces_between_special_tokens": False}, "spaces_between_special_tokens"),
        (CompletionBody, {"suffix": "b"}, "suffix"),
        (ResponsesBody, {"tools": [{**FUNCTION, "allowed_callers": ["programmatic"]}]}, "tools[0].allowed_callers"),
        (ResponsesBody, {"return_token_ids": True}, "return_token_ids"),
        (ResponsesBody, {"include": "message.output_text.logprobs"}, "include"),
        (PromptFields, {"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
    ],
)
def test_demands_are_refused_by_name(kind: type[Any], fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError, match=r"is .*: ") as caught:
        decoded(kind, **fields)
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, param, "unsupported_value")


@pytest.mark.parametrize(
    "kind", ["web_search_preview_2025_03_11", "custom", "namespace", "mcp", "tool_search", "shell"]
)
def test_tools_of_openais_servers_are_left_out_and_told(kind: str) -> None:
    ignored = Ignored()
    made = decoded(ResponsesBody, ignored, tools=[FUNCTION, {"type": kind, "name": "x"}, {**FUNCTION, "name": "g"}])
    assert [tool.name for tool in made.tools or ()] == ["f", "g"]
    chat = decoded(ChatBody, ignored, tools=[{"type": kind, kind: {}}], web_search_options={"user_location": None})
    assert chat.tools == []
    assert ignored.places == ["tools[1]", "tools[0]", "web_search_options"]


@pytest.mark.parametrize("kind", ["web_fetch_20260209", "memory_20250818", "tool_search_tool_bm25", "mcp_toolset"])
def test_tools_of_anthropics_servers_are_left_out_and_told(kind: str) -> None:
    ignored, hints = Ignored(), {"defer_loading": True, "input_examples": [{}], "allowed_callers": ["direct"]}
    made = decoded(MessagesBody, ignored, tools=[{"type": kind, "name": "x"}, {**CLAUDES, **hints}])
    assert made.tools == decoded(MessagesBody, tools=[CLAUDES]).tools
    assert ignored.places == ["tools[0]"]


def test_whole_floats_are_whole_numbers() -> None:
    assert decoded(ChatBody, top_k=50.0, seed=7.0, max_tokens=3.0, temperature=1.0, extra=None).top_k == 50
    with pytest.raises(ApiError, match="top_k: expected"):
        decoded(ChatBody, top_k=50.5)


def test_unknown_fields_are_dropped_and_told_where_that_is_wanted() -> None:
    ignored = Ignored(takes_unknown=True)
    made = decoded(ChatBody, ignored, seed=7, colour="red", stream_options={"include_usage": True, "shape": {}})
    assert made == decoded(ChatBody, seed=7, stream_options={"include_usage": True})
    assert ignored.places == ["colour", "stream_options.shape"]
    with pytest.raises(ApiError, match="best_of is 2: "):
        decoded(ChatBody, Ignored(takes_unknown=True), best_of=2)


@pytest.mark.parametrize("stream", [False, True])
def test_the_answers_header_names_what_was_left_out(stream: bool) -> None:
    unknown = {"a\r\nb: c": 1, **dict.fromkeys(map(str, range(20)), 1)}

    async def talk(asker: Asker) -> Any:
        strict = await asker.complete([3], max_tokens=1, **unknown)
        asker.app.settings.__dict__["ignore_unknown_fields"] = True
        headers: list[dict[str, str]] = []
        sink = asker.connection.open_stream({})
        asker.connection.open_stream = lambda given: headers.append(given) or sink
        response = await asker.complete([3], max_tokens=1, stream=stream, **unknown)
        return strict.status, headers[0] if stream else response.headers

    status, headers = ask(talk)
    assert status == 400
    assert headers["X-Ignored-Fields"].startswith("a??b:?c, 0, 1, 2")
    assert headers["X-Ignored-Fields"].endswith(", 14, and 5 more")


def test_every_row_is_of_a_body_and_described() -> None:
    bodies = [route.body for found in ROUTES.values() for route in found if route.body is not None]
    structs = set[Any]().union(*map(structs_of, bodies))
    assert {row.name for row in ROWS} == {name for struct in structs for name in rows_of(struct)}
    assert {name for row in ROWS for name in row.structs} <= {base.__name__ for one in structs for base in one.__mro__}
    schemas = describe(ROUTES, has_keys=False)["components"]["schemas"]
    assert schemas["ChatBody"]["properties"]["best_of"]["enum"] == [1, None]
    assert schemas["ChatBody"]["properties"]["use_beam_search"]["type"] == "boolean"
    assert "defer_loading" in schemas["ToolOptions"]["anyOf"][0]["properties"]


def test_parameters_are_checked_once_for_requests_that_ask_for_the_same() -> None:
    def made(**fields: Any) -> Any:
        return decoded(CompletionBody, **fields).sampling_params(max_tokens=3, draws=False)

    first = made(temperature=0.5, top_p=0.25, stop="x")
    assert made(temperature=0.5, top_p=0.25, stop="x") is first
    assert made(temperature=0.5, top_p=0.25, stop="y").stop == "y"
    assert made(stop=["x", "y"], logit_bias={"3": 1}) == made(stop=["x", "y"], logit_bias={"3": 1})
    for _ in range(2):
        with pytest.raises(ArgumentError, match="top_p must be"):
            made(top_p=2)
