"""OpenAI's own client talks to the server."""

import openai
import pytest


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as client:
        yield client


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
