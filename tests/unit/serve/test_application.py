"""What the application does with requests that it cannot take, and with large ones."""

import gc
import json
import threading
import weakref

import pytest

from tests.models import tiny_tokenizer
from tests.unit.serve.served import ask
from trtllm_lite.runtime.text.chat import ChatTemplate
from trtllm_lite.runtime.text.tokenizer import Tokenizer
from trtllm_lite.serve import answer, bodies, turns
from trtllm_lite.serve.api_error import ApiError
from trtllm_lite.serve.api_keys import ApiKeys
from trtllm_lite.serve.endpoints import tokens
from trtllm_lite.serve.http.messages import Request


def test_more_sequences_than_there_is_room_for_are_no_request():
    async def talk(server):
        capacity = server.model.capacity
        response = await server.complete([3], n=capacity + 1, max_tokens=1)
        error = json.loads(response.body)["error"]
        assert (response.status, error["code"]) == (400, "too_many_sequences")
        assert str(capacity) in error["message"]
        assert str(capacity + 1) in error["message"]
        assert server.loop.running == []

    ask(talk, model={"max_queue_size": 2})


@pytest.mark.parametrize("fails", ["no key", "unknown field"])
def test_a_request_that_is_refused_is_freed_without_a_search_for_cycles(fails):
    async def talk(server):
        headers = {"content-type": "application/json", **({} if fails == "no key" else {"x-api-key": "k"})}
        request = Body("POST", "/v1/completions", "", headers, bytearray(b'{"no": 1}'), server.connection, 0.0)
        response = await server.send(request)
        assert response.status == (401 if fails == "no key" else 400)
        gone = weakref.ref(request)
        del request
        assert gone() is None

    gc.disable()
    try:
        ask(talk, api_keys=ApiKeys(["k"]))
    finally:
        gc.enable()


class Body(Request):
    """A request that can be referred to weakly."""


@pytest.mark.parametrize(
    ("path", "field", "others"),
    [
        ("/v1/messages", "messages", {"max_tokens": 1}),
        ("/v1/messages/count_tokens", "messages", {}),
        ("/v1/responses", "input", {}),
    ],
)
def test_conversations_without_end_are_refused_before_they_are_read(monkeypatch, path, field, others):
    monkeypatch.setattr(bodies, "MAX_MESSAGES", 3)

    async def talk(server):
        response = await server.ask("POST", path, {field: [{"role": "user", "content": "x"}] * 4, **others})
        assert response.status == 400
        message = json.loads(response.body)["error"]["message"]
        assert f"{field} has 4 entries, which exceeds 3" in message

    ask(talk)


def test_tokens_to_write_out_are_bounded(monkeypatch):
    monkeypatch.setattr(tokens, "MAX_PROMPT_IDS", 3)

    async def talk(server):
        response = await server.ask("POST", "/detokenize", {"tokens": [1] * 4})
        assert response.status == 400
        assert "tokens has 4 entries, which exceeds 3" in json.loads(response.body)["error"]["message"]

    ask(talk)


def test_a_large_body_is_read_in_another_thread(monkeypatch):
    async def talk(server):
        response = await server.complete([3, 4], max_tokens=2)
        assert response.status == 200
        assert json.loads(response.body)["usage"]["completion_tokens"] == 2

    monkeypatch.setattr(bodies, "_LARGE_BODY", 1)
    monkeypatch.setattr(turns, "_LARGE_BODY", 1)
    ask(talk)


@pytest.mark.parametrize(
    ("fields", "is_first", "in_loop"),
    [
        ({}, False, True),
        ({}, True, False),  # the process that renders may not run yet
        ({"user": "u" * turns.MAX_QUICK_BYTES}, False, False),
        ({"n": 2}, False, False),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, False, False),
        ({"response_format": {"type": "json_object"}}, False, False),
        ({"bad_words": ["x"]}, False, False),
    ],
)
def test_short_chats_are_prepared_without_another_thread(monkeypatch, fields, is_first, in_loop):
    template = "{{ messages[0].content }}"
    tokenizer = Tokenizer(tiny_tokenizer(), {"chat_template": template})
    threads = []

    def prepare(*_):
        threads.append(threading.current_thread())
        raise ApiError(503, "so far")

    async def talk(server):
        server.model.tokenizer = tokenizer
        messages = [{"role": "user", "content": "x"}]
        response = await server.ask("POST", "/v1/chat/completions", {"messages": messages, **fields})
        assert response.status == 503, response.body

    monkeypatch.setattr(answer, "prepare", prepare)
    monkeypatch.setattr(ChatTemplate, "was_quick", not is_first)
    ask(talk)
    assert threads == [threading.current_thread()] if in_loop else threads != [threading.current_thread()]
