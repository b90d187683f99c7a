"""OpenAI's own client asks for structured outputs and function calls."""

import json
from enum import Enum

import pytest
from pydantic import BaseModel

CITIES, ZONES = ["Paris", "Rome"], ["UTC", "CET"]
QUESTION = [{"role": "user", "content": "How is the weather in Rome?"}]


def tool(name: str, **properties: object) -> dict[str, object]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


TOOLS = [tool("weather", city={"enum": CITIES}), tool("clock", zone={"enum": ZONES})]
NAMED = {"type": "function", "function": {"name": "weather"}}
ASKED = {"model": "smollm2", "messages": QUESTION, "temperature": 0, "max_tokens": 300, "tools": TOOLS}
# An answer with two calls, whatever the model would prefer.
CALL = '<tool_call>\n{"name": "clock", "arguments": {"zone": "UTC"}}\n</tool_call>'
TWO_CALLS = {**ASKED, "extra_body": {"guided_choice": [f"{CALL}\n{CALL} and some more"]}}


def streamed_calls(chunks):
    """The calls that deltas add up to, by index, and the finish reason."""
    calls, reason = {}, None
    for chunk in chunks:
        choice = chunk.choices[0]
        reason = choice.finish_reason or reason
        for delta in choice.delta.tool_calls or []:
            call = calls.setdefault(delta.index, {"id": delta.id, "name": delta.function.name, "arguments": ""})
            assert delta.id in (None, call["id"])
            call["arguments"] += delta.function.arguments
    return calls, reason


def test_a_structure_is_parsed(client):
    class Weather(Enum):
        SUN = "sun"
        RAIN = "rain"

    class Report(BaseModel):
        weather: Weather
        is_warm: bool

    asked = {"model": "smollm2", "messages": QUESTION, "temperature": 0}
    choice = client.chat.completions.parse(**asked, response_format=Report).choices[0]
    assert isinstance(choice.message.parsed, Report)
    assert choice.finish_reason == "stop"


def test_json_is_made_without_a_schema(client):
    asked = {**ASKED, "tools": [], "max_tokens": 40, "response_format": {"type": "json_object"}}
    choice = client.chat.completions.create(**asked).choices[0]
    assert choice.message.content.startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_required_call_is_made(client, choice):
    asked = {**ASKED, "tool_choice": choice, "parallel_tool_calls": False}
    answer = client.chat.completions.create(**asked).choices[0]
    [call] = answer.message.tool_calls
    name = call.function.name
    assert answer.finish_reason == "tool_calls"
    assert answer.message.content is None
    assert name in (["weather"] if choice is NAMED else ["weather", "clock"])
    [(key, value)] = json.loads(call.function.arguments).items()
    assert value in {"city": CITIES, "zone": ZONES}[key]
    calls, reason = streamed_calls(client.chat.completions.create(**asked, stream=True))
    assert reason == "tool_calls"
    assert [found["name"] for found in calls.values()] == [name]
    assert calls[0]["arguments"] == call.function.arguments


def test_several_calls_are_told_apart(client):
    answer = client.chat.completions.create(**TWO_CALLS).choices[0]
    assert [call.function.name for call in answer.message.tool_calls] == ["clock", "clock"]
    assert len({call.id for call in answer.message.tool_calls}) == 2
    assert answer.message.content == "and some more"
    assert answer.finish_reason == "tool_calls"
    calls, reason = streamed_calls(client.chat.completions.create(**TWO_CALLS, stream=True))
    assert [json.loads(call["arguments"]) for call in calls.values()] == [{"zone": "UTC"}] * 2
    assert reason == "tool_calls"


def test_an_answer_ends_with_the_first_call_where_only_one_is_wanted(client):
    whole = client.chat.completions.create(**TWO_CALLS, parallel_tool_calls=False)
    answer = whole.choices[0]
    assert len(answer.message.tool_calls) == 1
    assert (answer.message.content, answer.finish_reason) == (None, "tool_calls")
    assert whole.usage.completion_tokens < client.chat.completions.create(**TWO_CALLS).usage.completion_tokens
    calls, reason = streamed_calls(client.chat.completions.create(**TWO_CALLS, parallel_tool_calls=False, stream=True))
    assert len(calls) == 1
    assert reason == "tool_calls"


@pytest.mark.parametrize("num_tokens", [4, 12, 16, 24])
def test_a_call_that_is_cut_off_is_no_reason_of_an_end(client, num_tokens):
    asked = {**TWO_CALLS, "max_tokens": num_tokens}
    assert client.chat.completions.create(**asked).choices[0].finish_reason == "length"
    assert streamed_calls(client.chat.completions.create(**asked, stream=True))[1] == "length"


def test_a_named_function_is_called_once_and_before_a_form_of_answers(client):
    form = {"type": "json_schema", "json_schema": {"name": "zone", "schema": {"type": "object"}, "strict": True}}
    for asked in ({}, {"response_format": form}):
        answer = client.chat.completions.create(**ASKED, tool_choice=NAMED, **asked).choices[0]
        assert [call.function.name for call in answer.message.tool_calls] == ["weather"]
        assert answer.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("arguments", "streamed"),
    [('{"zone": "UTC", 1}', '{"zone": "UTC"}'), ('{"zone": {UTC}}', None)],
)
def test_a_malformed_call_is_text_or_closed_and_can_be_played_back(client, arguments, streamed):
    text = f'<tool_call>\n{{"name": "clock", "arguments": {arguments}}}\n</tool_call>'
    asked = {**ASKED, "extra_body": {"guided_choice": [text]}}
    answer = client.chat.completions.create(**asked).choices[0]
    assert (answer.message.content, answer.message.tool_calls, answer.finish_reason) == (text, None, "stop")
    chunks = list(client.chat.completions.create(**asked, stream=True))
    calls, reason = streamed_calls(chunks)
    content = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert ([call["arguments"] for call in calls.values()], content, reason) == (
        ([streamed], "", "stop") if streamed else ([], text, "stop")
    )
    function = {"name": "clock", "arguments": arguments}
    called = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}
    result = {"role": "tool", "tool_call_id": "c", "content": "These are no arguments."}
    again = client.chat.completions.create(**{**ASKED, "max_tokens": 4, "messages": [*QUESTION, called, result]})
    assert again.choices[0].message.content


def test_no_tool_is_called_where_none_may_be(client):
    answer = client.chat.completions.create(**TWO_CALLS, tool_choice="none").choices[0]
    assert answer.message.tool_calls is None
    assert answer.message.content.startswith("<tool_call>")
    assert answer.finish_reason == "stop"


def test_results_of_calls_go_back_to_the_model(client):
    answer = client.chat.completions.create(**ASKED, tool_choice="required", parallel_tool_calls=False)
    called = answer.choices[0].message
    result = {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": "Rome is sunny."}
    asked = {**ASKED, "max_tokens": 8, "messages": [*QUESTION, called, result]}
    assert client.chat.completions.create(**asked).choices[0].message.content
    developer = {"role": "developer", "content": "Be brief."}
    assert client.chat.completions.create(**{**asked, "messages": [developer, *QUESTION]}).choices[0].message.content
