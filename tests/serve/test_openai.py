"""OpenAI's own client talks to the server."""

import asyncio

import openai
import pytest

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def test_a_chat_is_answered_whole_and_in_pieces_alike(client):
    asked = {"model": "smollm2", "messages": QUESTION, "temperature": 0, "max_tokens": 24}
    whole = client.chat.completions.create(**asked)
    pieces = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert whole.choices[0].message.role == "assistant"
    assert "Paris" in whole.choices[0].message.content
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces[:-1]) == whole.choices[0].message.content
    assert [piece.choices[0].finish_reason for piece in pieces[-2:-1]] == [whole.choices[0].finish_reason]
    assert pieces[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert pieces[-1].usage.total_tokens == whole.usage.total_tokens


def test_a_prompt_is_completed(client):
    completion = client.completions.create(
        model="smollm2", prompt="Water boils at", max_tokens=8, temperature=0, echo=True
    )
    assert completion.choices[0].text.startswith("Water boils at")
    assert completion.usage.completion_tokens == 8


def test_several_choices_are_drawn_alike_from_one_seed(client):
    asked = {"model": "smollm2", "messages": QUESTION, "n": 3, "seed": 7, "max_tokens": 12}
    first, second = (client.chat.completions.create(**asked).choices for _ in range(2))
    texts = [choice.message.content for choice in first]
    assert texts == [choice.message.content for choice in second]
    assert len(set(texts)) > 1
    streamed = [""] * 3
    for chunk in client.chat.completions.create(**asked, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == texts


def test_a_chat_ends_at_a_stop_string(client):
    asked = {"model": "smollm2", "messages": QUESTION, "temperature": 0, "max_tokens": 24, "stop": ["Paris"]}
    choice = client.chat.completions.create(**asked).choices[0]
    assert (choice.message.content, choice.finish_reason) == ("The capital of France is ", "stop")
    chunks = list(client.chat.completions.create(**asked, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "The capital of France is "


def test_a_field_that_is_null_counts_as_left_out(client):
    asked = {"model": "smollm2", "max_tokens": 2, "extra_body": {"ignore_eos": True}}
    nulls = dict.fromkeys(("n", "stream", "stop", "top_p", "logit_bias", "stream_options", "tools", "seed"))
    choice = client.chat.completions.create(**asked, messages=QUESTION, **nulls).choices[0]
    assert choice.finish_reason == "length"
    nulls = dict.fromkeys(("n", "stream", "echo", "best_of", "suffix", "logprobs"))
    assert client.completions.create(**asked, prompt="a", **nulls).usage.completion_tokens == 2


def test_a_token_can_be_forced_and_banned(client):
    asked = {"model": "smollm2", "prompt": "Water boils at", "temperature": 0, "max_tokens": 1}
    ids = {"extra_body": {"return_token_ids": True}}
    first = client.completions.create(**asked, **ids).choices[0].token_ids[0]
    banned = client.completions.create(**asked, **ids, logit_bias={str(first): -100}).choices[0].token_ids[0]
    forced = client.completions.create(**asked, **ids, logit_bias={"42": 100}).choices[0].token_ids[0]
    assert banned != first
    assert forced == 42


def test_prompts_of_texts_and_of_tokens_are_completed_alike(client):
    texts = ["Water boils at", "The capital of France is"]
    asked = {"model": "smollm2", "temperature": 0, "max_tokens": 4}
    of_texts = client.completions.create(**asked, prompt=texts, extra_body={"return_token_ids": True})
    ids = [choice.prompt_token_ids for choice in of_texts.choices]
    of_ids = client.completions.create(**asked, prompt=ids)
    alone = [client.completions.create(**asked, prompt=row).choices[0].text for row in ids]
    assert [choice.index for choice in of_ids.choices] == [0, 1]
    assert [choice.text for choice in of_ids.choices] == [choice.text for choice in of_texts.choices] == alone
    assert of_ids.usage.prompt_tokens == sum(map(len, ids))
    assert of_ids.usage.completion_tokens == 8


def test_an_asynchronous_client_is_answered_side_by_side(server):
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as client:
            asked = {"model": "smollm2", "messages": QUESTION, "temperature": 0, "max_tokens": 12}

            async def streamed() -> str:
                chunks = await client.chat.completions.create(**asked, stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

            async def whole() -> str:
                return (await client.chat.completions.create(**asked)).choices[0].message.content

            return list(await asyncio.gather(streamed(), whole(), streamed(), whole()))

    texts = asyncio.run(ask())
    assert "Paris" in texts[0]
    assert len(set(texts)) == 1


def test_log_probabilities_are_those_of_the_model(client):
    asked = {"model": "smollm2", "temperature": 0, "max_tokens": 4, "logprobs": 2}
    first = client.completions.create(**asked, prompt="Water boils at")
    known = first.choices[0].logprobs
    assert known.tokens == [max(row, key=row.get) for row in known.top_logprobs]
    assert known.token_logprobs == [max(row.values()) for row in known.top_logprobs]
    # As a prompt, the text gets the log probabilities with which it was sampled.
    text = "Water boils at" + first.choices[0].text
    echoed = client.completions.create(**{**asked, "max_tokens": 1}, prompt=text, echo=True).choices[0].logprobs
    assert echoed.tokens[-5:-1] == known.tokens
    assert echoed.token_logprobs[-5:-1] == pytest.approx(known.token_logprobs, abs=0.1)
    assert echoed.token_logprobs[0] is None
    assert echoed.text_offset[-5] == len("Water boils at")
    chunks = list(client.completions.create(**asked, prompt="Water boils at", stream=True))
    assert [value for chunk in chunks for value in chunk.choices[0].logprobs.token_logprobs] == known.token_logprobs


def test_a_chat_tells_likely_tokens(client):
    asked = {"model": "smollm2", "messages": QUESTION, "temperature": 0, "max_tokens": 6}
    chosen = {**asked, "logprobs": True, "top_logprobs": 2}
    choice = client.chat.completions.create(**chosen).choices[0]
    entries = choice.logprobs.content
    assert "".join(entry.token for entry in entries) == choice.message.content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == choice.message.content
    assert all(entry.top_logprobs[0].logprob == entry.logprob for entry in entries)
    assert {len(entry.top_logprobs) for entry in entries} == {2}
    chunks = client.chat.completions.create(**chosen, stream=True)
    streamed = [entry for chunk in chunks if (found := chunk.choices[0].logprobs) for entry in found.content]
    assert streamed == entries


def test_a_request_may_be_named_in_its_body(client):
    asked = {"model": "smollm2", "prompt": "One", "max_tokens": 1}
    assert client.completions.create(**asked, extra_body={"request_id": "mine"}).id == "cmpl-mine"
    with pytest.raises(openai.BadRequestError, match="request_id: expected 1 to 128") as caught:
        client.completions.create(**asked, extra_body={"request_id": "a\r\nb"})
    assert caught.value.param == "request_id"


@pytest.mark.parametrize("logprobs", [None, 2])
def test_a_prompt_is_echoed_without_an_answer(client, logprobs):
    asked = {"model": "smollm2", "prompt": ["Water boils at", "Ice"], "echo": True, "logprobs": logprobs}
    echoed, answered = (
        client.completions.create(**asked, max_tokens=0),
        client.completions.create(**asked, max_tokens=1),
    )
    assert [choice.text for choice in echoed.choices] == asked["prompt"]
    assert {choice.finish_reason for choice in echoed.choices} == {"length"}
    assert echoed.usage.completion_tokens == 0
    assert echoed.usage.prompt_tokens == answered.usage.prompt_tokens
    chunks = list(client.completions.create(**asked, max_tokens=0, stream=True))
    for index, choice in enumerate(echoed.choices):
        (chunk,) = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == index]
        assert (chunk.text, chunk.finish_reason, chunk.logprobs) == (choice.text, "length", choice.logprobs)
        if logprobs is not None:
            assert choice.logprobs.token_logprobs == answered.choices[index].logprobs.token_logprobs[:-1]
    with pytest.raises(openai.BadRequestError, match="max_tokens is 0"):
        client.completions.create(model="smollm2", prompt="a", max_tokens=0)
