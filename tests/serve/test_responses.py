"""OpenAI's own client talks to the server through the Responses API."""

import asyncio
import json

import openai
import pydantic
import pytest

QUESTION = "What is the capital of France?"
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
ASKS_FOR_WEATHER = {
    "model": "smollm2",
    "input": "What is the weather in Paris?",
    "temperature": 0,
    "tools": [WEATHER],
    "tool_choice": "required",
    "parallel_tool_calls": False,
}


class City(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=16)
    is_capital: bool


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_an_input_is_answered_whole_and_in_pieces_alike(client):
    asked = {"model": "smollm2", "input": QUESTION, "temperature": 0, "max_output_tokens": 64}
    whole = client.responses.create(**asked, instructions="Answer in one sentence.", metadata={"a": "b"})
    assert "Paris" in whole.output_text
    assert (whole.status, whole.store, whole.metadata) == ("completed", False, {"a": "b"})
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
    with client.responses.stream(**asked, instructions="Answer in one sentence.") as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == whole.output_text
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    assert [e.sequence_number for e in events] == list(range(len(events)))
    kinds = [e.type.removeprefix("response.") for e in events if not e.type.endswith("delta")]
    assert kinds == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_a_conversation_goes_on_with_the_items_of_a_response(client):
    first = client.responses.create(model="smollm2", input=QUESTION, temperature=0, max_output_tokens=64)
    items = [{"role": "user", "content": QUESTION}, *(item.to_dict() for item in first.output)]
    items.append({"role": "user", "content": [{"type": "input_text", "text": "And of Italy?"}]})
    assert "Rome" in client.responses.create(model="smollm2", input=items, temperature=0).output_text


def test_an_answer_that_is_cut_off_is_incomplete(client):
    asked = {"model": "smollm2", "input": QUESTION, "temperature": 0, "max_output_tokens": 2}
    cut = client.responses.create(**asked)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (cut.output[0].status, cut.usage.output_tokens) == ("incomplete", 2)
    last = list(client.responses.create(**asked, stream=True))[-1]
    assert (last.type, last.response.output_text) == ("response.incomplete", cut.output_text)


def test_a_text_follows_a_schema(client):
    asked = {"model": "smollm2", "input": QUESTION, "temperature": 0, "max_output_tokens": 100}
    parsed = client.responses.parse(**asked, text_format=City)
    assert isinstance(parsed.output_parsed, City)


def test_a_required_function_is_called_and_its_output_taken(client):
    response = client.responses.create(**ASKS_FOR_WEATHER)
    (call,) = response.output
    assert (call.type, call.name, call.status) == ("function_call", "get_weather", "completed")
    assert set(json.loads(call.arguments)) == {"city"}
    items = [
        {"role": "user", "content": ASKS_FOR_WEATHER["input"]},
        call.to_dict(),
        {"type": "function_call_output", "call_id": call.call_id, "output": "It rains."},
    ]
    answer = client.responses.create(model="smollm2", input=items, tools=[WEATHER], max_output_tokens=8)
    assert answer.usage.input_tokens > response.usage.input_tokens


def test_a_call_streams_its_arguments(client):
    events = list(client.responses.create(**ASKS_FOR_WEATHER, stream=True))
    (done,) = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta") == done.arguments
    assert events[-1].response.output[0].arguments == done.arguments


def test_a_call_that_is_cut_off_is_never_said_to_be_complete(client):
    num_tokens = client.responses.create(**ASKS_FOR_WEATHER).usage.output_tokens
    types = set()
    for missing in (1, 4, 12):
        asked = {**ASKS_FOR_WEATHER, "max_output_tokens": num_tokens - missing}
        whole = client.responses.create(**asked)
        events = list(client.responses.create(**asked, stream=True))
        for response in (whole, events[-1].response):
            assert response.status == "incomplete"
            assert {item.status for item in response.output} <= {"incomplete"}
            types |= {item.type for item in response.output}
        assert not [e for e in events if e.type == "response.function_call_arguments.done"]
    assert "function_call" in types


@pytest.mark.parametrize(
    ("wish", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"store": True}, "store"),
        ({"tools": [{"type": "frobnicate"}]}, "tools[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"extra_body": {"max_tokens": 3}}, "max_tokens"),
    ],
)
def test_what_is_not_supported_is_an_error_that_names_it(client, wish, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**{"model": "smollm2", "input": QUESTION, **wish})
    assert caught.value.param == param


def test_responses_are_not_stored(client):
    for ask in (client.responses.retrieve, client.responses.cancel, client.responses.delete):
        with pytest.raises(openai.NotFoundError, match="not stored"):
            ask("resp_1")


def test_the_asynchronous_client_streams_too(server):
    async def ask():
        async with openai.AsyncOpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as client:
            asked = {"model": "smollm2", "input": QUESTION, "temperature": 0, "max_output_tokens": 16}
            whole = await client.responses.create(**asked)
            async with client.responses.stream(**asked) as stream:
                pieces = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        return whole.output_text, "".join(pieces)

    whole, streamed = asyncio.run(ask())
    assert whole == streamed
