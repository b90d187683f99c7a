"""Anthropic's own client talks to the server through the Messages API."""

import asyncio

import anthropic
import pytest

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = {
    "name": "get_weather",
    "description": "Get the weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
GREEDY = {"temperature": 0}
ASKED = {"model": "smollm2", "messages": QUESTION, "max_tokens": 64, "extra_body": GREEDY}
ASKS_FOR_WEATHER = {
    "model": "smollm2",
    "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
    "max_tokens": 128,
    "tools": [WEATHER],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    "extra_body": GREEDY,
}


@pytest.fixture(scope="module")
def client(server):
    with anthropic.Anthropic(base_url=server.address, api_key="none", max_retries=0) as client:
        yield client


def test_a_conversation_is_answered_whole_and_in_pieces_alike(client):
    whole = client.messages.create(**ASKED, system=[{"type": "text", "text": "Answer in one sentence."}])
    (block,) = whole.content
    assert "Paris" in block.text
    assert (whole.role, whole.stop_reason, whole.stop_sequence) == ("assistant", "end_turn", None)
    with client.messages.stream(**ASKED, system="Answer in one sentence.") as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(pieces) == block.text == final.content[0].text
    assert len(pieces) > 1
    assert (final.stop_reason, final.usage.output_tokens) == ("end_turn", whole.usage.output_tokens)


def test_events_come_in_the_order_of_the_api(client):
    events = list(client.messages.create(**ASKED, stream=True))
    kinds = [event.type for event in events if event.type != "content_block_delta"]
    assert kinds == ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]
    usage = events[-2].usage
    counted = client.messages.count_tokens(model="smollm2", messages=QUESTION).input_tokens
    assert usage.input_tokens + usage.cache_read_input_tokens == counted


def test_why_an_answer_ended_is_told(client):
    cut = client.messages.create(**{**ASKED, "max_tokens": 2})
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 2)
    stopped = client.messages.create(**ASKED, stop_sequences=["Paris"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "Paris")
    assert not stopped.content[0].text.endswith("Paris")


def test_an_answer_that_the_client_has_begun_goes_on(client):
    begun = [*QUESTION, {"role": "assistant", "content": "The capital of France is"}]
    assert client.messages.create(**{**ASKED, "messages": begun}).content[0].text.startswith(" Paris")


def test_a_tool_is_used_and_its_result_taken(client):
    message = client.messages.create(**ASKS_FOR_WEATHER)
    (use,) = message.content
    assert (message.stop_reason, use.type, use.name, list(use.input)) == (
        "tool_use",
        "tool_use",
        "get_weather",
        ["city"],
    )
    with client.messages.stream(**ASKS_FOR_WEATHER) as stream:
        streamed = stream.get_final_message()
    assert (streamed.stop_reason, streamed.content[0].input) == ("tool_use", use.input)
    result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "It rains."}]}
    history = [
        *ASKS_FOR_WEATHER["messages"],
        {"role": "assistant", "content": [use.to_dict()]},
        {"role": "user", "content": [result]},
    ]
    asked = {"model": "smollm2", "messages": history, "tools": [WEATHER]}
    answer = client.messages.create(**asked, max_tokens=4, extra_body=GREEDY)
    assert 1 <= answer.usage.output_tokens <= 4
    assert client.messages.count_tokens(**asked).input_tokens > message.usage.input_tokens


def test_a_call_that_is_cut_off_is_never_said_to_be_complete(client):
    num_tokens = client.messages.create(**ASKS_FOR_WEATHER).usage.output_tokens
    for missing in (1, 4, 12):
        asked = {**ASKS_FOR_WEATHER, "max_tokens": num_tokens - missing}
        whole = client.messages.create(**asked)
        assert whole.stop_reason == "max_tokens"
        assert not [block for block in whole.content if block.type == "tool_use"]
        assert list(client.messages.create(**asked, stream=True))[-2].delta.stop_reason == "max_tokens"


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            r"messages\[0\].content\[0\].type is 'image'",
        ),
        ({"tools": [{"type": "frobnicate", "name": "web_search", "input_schema": {}}]}, r"tools\[0\].type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"extra_body": {"container": "c"}}, "container"),
        ({"extra_body": {"max_tokens": None}}, "max_tokens"),
    ],
)
def test_what_is_not_supported_is_an_error_that_names_it(client, wish, message):
    with pytest.raises(anthropic.BadRequestError, match=message) as caught:
        client.messages.create(**{**ASKED, **wish})
    assert caught.value.body["type"] == "error"
    assert caught.value.body["error"]["type"] == "invalid_request_error"


def test_a_model_that_is_not_there_is_not_found(client):
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.create(**{**ASKED, "model": "other"})
    assert caught.value.body["error"]["type"] == "not_found_error"


def test_the_asynchronous_client_streams_too(server):
    async def ask():
        async with anthropic.AsyncAnthropic(base_url=server.address, api_key="none", max_retries=0) as client:
            whole = await client.messages.create(**ASKED)
            async with client.messages.stream(**ASKED) as stream:
                pieces = [text async for text in stream.text_stream]
        return whole.content[0].text, "".join(pieces)

    whole, streamed = asyncio.run(ask())
    assert whole == streamed
