"""What a model says becomes the items of a response, whole and as events."""

from functools import partial
from typing import Any

import pytest

from tests.unit.serve.answering import NUM_CACHED_TOKENS, NUM_PROMPT_TOKENS, Answering
from trtllm_lite.runtime.session.request import FinishReason, Response
from trtllm_lite.serve.api_error import ApiError
from trtllm_lite.serve.bodies.responses import ResponsesBody
from trtllm_lite.serve.endpoints.responses import ResponseAnswer

CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
TEXT = f"<think>Hm.</think>Hello {CALL}{CALL}"


def answering() -> Answering:
    return Answering(partial(ResponseAnswer, ResponsesBody(input="Hi")))


def said(items: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """The kinds of items, what they hold, and their states."""
    texts = [item["arguments"] if "arguments" in item else item["content"][0]["text"] for item in items]
    return [(item["type"], text, item["status"]) for item, text in zip(items, texts, strict=True)]


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("reason", [FinishReason.END_ID, FinishReason.LENGTH, FinishReason.TIMEOUT])
@pytest.mark.parametrize("length", range(0, len(TEXT) + 1, 7))
def test_a_stream_tells_of_the_items_of_the_whole_response(length: int, reason: FinishReason, size: int) -> None:
    whole = answering().whole(TEXT[:length], reason)
    events = answering().streamed(TEXT[:length], reason, size)
    told, given = said(events[-1]["response"]["output"]), said(whole["output"])
    if told and (told[-1][0], told[-1][2]) == ("function_call", "incomplete"):  # a whole response has it as text
        told[-2:] = [("message", TEXT[:length].removeprefix("<think>Hm.</think>"), "incomplete")]
    assert told == given
    assert events[-1]["type"] == f"response.{whole['status']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for number, item in enumerate(events[-1]["response"]["output"]):
        own = [event for event in events if event.get("output_index") == number]
        assert own[0]["type"] == "response.output_item.added"
        assert own[0]["item"]["status"] == "in_progress"
        assert own[-1] == {**own[-1], "type": "response.output_item.done", "item": item}
        assert "".join(event["delta"] for event in own if "delta" in event) == said([item])[0][1]
        assert {event["item_id"] for event in own[1:-1]} <= {item["id"]}


def test_reasoning_texts_and_calls_are_items() -> None:
    whole = answering().whole(TEXT, FinishReason.END_ID)
    assert said(whole["output"]) == [
        ("reasoning", "Hm.", "completed"),
        ("message", "Hello ", "completed"),
        ("function_call", '{"a": 1}', "completed"),
        ("function_call", '{"a": 1}', "completed"),
    ]
    assert (whole["status"], whole["incomplete_details"]) == ("completed", None)
    assert whole["usage"] == {
        "input_tokens": NUM_PROMPT_TOKENS,
        "input_tokens_details": {"cached_tokens": NUM_CACHED_TOKENS, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": NUM_PROMPT_TOKENS + 2,
    }


BROKEN = '<tool_call>{"name": "f", "arguments": {"a": "b", c: 1}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "reason", "status"),
    [
        (BROKEN[:-18], FinishReason.LENGTH, "incomplete"),
        (BROKEN[:-18], FinishReason.END_ID, "completed"),
        (BROKEN, FinishReason.END_ID, "completed"),
    ],
)
def test_a_call_that_does_not_end_is_a_text_or_incomplete(text: str, reason: FinishReason, status: str) -> None:
    whole = answering().whole(text, reason)
    assert whole["status"] == status
    assert said(whole["output"]) == [("message", text, status)]
    *_, last = events = answering().streamed(text, reason, 3)
    assert "response.function_call_arguments.done" not in [event["type"] for event in events]
    pieces = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert "".join(pieces) == ('{"a": "b"' if reason == FinishReason.LENGTH else '{"a": "b"}')
    (item,) = last["response"]["output"]
    assert (item["type"], item["status"], item["arguments"]) == ("function_call", "incomplete", "".join(pieces))


def test_why_a_response_is_incomplete_is_told() -> None:
    for reason, word in ((FinishReason.LENGTH, "max_output_tokens"), (FinishReason.TIMEOUT, "timeout")):
        assert answering().whole("Hello", reason)["incomplete_details"] == {"reason": word}


def test_a_failure_ends_a_stream_with_what_there_is() -> None:
    found = answering()
    found.answer._take(0, [Response(1, "<think>Hm.</think>Hello")], found.handle)
    found.answer._fail(ApiError(500, "it broke"))
    last = found.wire.events()[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"] == {"code": "server_error", "message": "it broke"}
    assert said(last["response"]["output"]) == [("reasoning", "Hm.", "completed")]
    assert found.wire.has_ended
