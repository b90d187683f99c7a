"""Requests in the forms that clients in use send get answers in the forms that their libraries read.

``bodies/`` has them: recorded from the clients, or written from what these send. Limits are lowered to a few tokens.
"""

import json
from pathlib import Path

import anthropic.types
import httpx
import openai.types.chat
import openai.types.responses
import pytest
from pydantic import TypeAdapter

MAX_TOKENS = 4
FILES = sorted((Path(__file__).parent / "bodies").glob("*.json"))
REQUESTS = [
    pytest.param(request["path"], request["body"], id=f"{path.stem}-{number}")
    for path in FILES
    for number, request in enumerate(json.loads(path.read_text())["requests"])
]
FORMS = {  # forms of a whole answer, and of an event
    "/v1/chat/completions": (openai.types.chat.ChatCompletion, openai.types.chat.ChatCompletionChunk),
    "/v1/completions": (openai.types.Completion, openai.types.Completion),
    "/v1/responses": (openai.types.responses.Response, openai.types.responses.ResponseStreamEvent),
    "/v1/messages": (anthropic.types.Message, anthropic.types.RawMessageStreamEvent),
    "/v1/messages/count_tokens": (anthropic.types.MessageTokensCount, None),
}
LIMITS = {
    "/v1/chat/completions": ("max_tokens", "max_completion_tokens"),
    "/v1/completions": ("max_tokens",),
    "/v1/responses": ("max_output_tokens",),
    "/v1/messages": ("max_tokens",),
    "/v1/messages/count_tokens": (),
}


@pytest.fixture(scope="module")
def connection(server):
    with httpx.Client(base_url=server.address, timeout=60) as made:
        yield made


@pytest.mark.parametrize(("path", "body"), REQUESTS)
def test_what_clients_send_is_answered_in_a_form_that_they_read(connection, path, body):
    place = path.partition("?")[0]
    response = connection.post(path, json=body | dict.fromkeys(LIMITS[place], MAX_TOKENS))
    assert response.status_code == 200, response.text
    whole, event = map(TypeAdapter, FORMS[place])
    if not body.get("stream"):
        # A prompt's first token has no log probability, although OpenAI's types require one.
        content = response.content.replace(b'"token_logprobs":[null,', b'"token_logprobs":[0,')
        whole.validate_json(content.replace(b'"top_logprobs":[null,', b'"top_logprobs":[{},'))
        return
    data = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    events = [event.validate_json(text) for text in data if text != "[DONE]"]
    assert len(events) > 1


@pytest.mark.parametrize(("client", "places"), [("codex", [1, 2, 3, 4, 5]), ("claude-code", [2, 3])])
def test_what_is_left_out_of_agents_requests_is_told(connection, client, places):
    path, body = next(param.values for param in REQUESTS if param.id == f"{client}-0")
    response = connection.post(path, json={**body, LIMITS[path.partition("?")[0]][0]: 1})
    assert response.headers["X-Ignored-Fields"] == ", ".join(f"tools[{place}]" for place in places)
