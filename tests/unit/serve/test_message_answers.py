"""What a model says becomes the content blocks of a message, whole and as events."""

import json
from typing import Any

import pytest

from tests.unit.serve.answering import NUM_CACHED_TOKENS, NUM_PROMPT_TOKENS, Answering
from trtllm_lite.runtime.session.request import FinishReason, Response
from trtllm_lite.serve.api_error import ApiError
from trtllm_lite.serve.endpoints.messages import MessageAnswer, anthropic_error

CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
TEXT = f"<think>Hm.</think>Hello {CALL}{CALL}"


def answering() -> Answering:
    return Answering(MessageAnswer)


def said(block: dict[str, Any]) -> list[Any]:
    """The kind of a block, and what it holds."""
    return [block["type"], next(block[name] for name in ("text", "thinking", "input") if name in block)]


def blocks_of(events: list[dict[str, Any]]) -> list[list[Any]]:
    """The kind and the content of each block that events deliver; the input of a call is text."""
    blocks: list[list[Any]] = []
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append([event["content_block"]["type"], ""])
        elif event["type"] == "content_block_delta":
            assert event["index"] == len(blocks) - 1
            ((_, text),) = ((name, text) for name, text in event["delta"].items() if name != "type")
            blocks[-1][1] += text
    return blocks


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("reason", [FinishReason.END_ID, FinishReason.LENGTH])
@pytest.mark.parametrize("length", range(0, len(TEXT) + 1, 7))
def test_a_stream_tells_of_the_blocks_of_the_whole_message(length: int, reason: FinishReason, size: int) -> None:
    whole = answering().whole(TEXT[:length], reason)
    events = answering().streamed(TEXT[:length], reason, size)
    ends = [event for event in events if event["type"] == "content_block_stop"]
    told = blocks_of(events)
    assert [event["index"] for event in ends] == list(range(len(told)))
    given = [said(block) for block in whole["content"]]
    if [kind for kind, _ in told] != [kind for kind, _ in given]:  # a cut-off call is a text in a whole message
        told[-2:] = [["text", TEXT[:length].removeprefix("<think>Hm.</think>")]]
        assert whole["stop_reason"] != "tool_use"
    assert [[kind, json.loads(text) if kind == "tool_use" else text] for kind, text in told] == given
    assert events[-2]["delta"] == {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    assert events[-2]["usage"] == {**whole["usage"], "output_tokens": events[-2]["usage"]["output_tokens"]}
    assert events[-1] == {"type": "message_stop"}


def test_reasoning_texts_and_calls_are_blocks() -> None:
    whole = answering().whole(TEXT, FinishReason.END_ID)
    call = ["tool_use", {"a": 1}]
    assert [said(block) for block in whole["content"]] == [["thinking", "Hm."], ["text", "Hello "], call, call]
    assert whole["stop_reason"] == "tool_use"
    assert whole["usage"] == {
        "input_tokens": NUM_PROMPT_TOKENS - NUM_CACHED_TOKENS,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": NUM_CACHED_TOKENS,
        "output_tokens": 2,
    }


def test_a_malformed_call_is_no_use_of_a_tool() -> None:
    whole = answering().whole(CALL + CALL.replace("1", "1 1"), FinishReason.END_ID)
    assert whole["stop_reason"] == "end_turn"
    assert [block["type"] for block in whole["content"]] == ["tool_use", "text"]


def test_inputs_that_python_cannot_write_as_text_are_given_as_they_are() -> None:
    call = CALL.replace("1", '"\\ud800"')
    assert answering().whole(call, FinishReason.END_ID)["content"][0]["input"] == {"a": "\ud800"}


def test_a_failure_is_an_event_of_the_api() -> None:
    found = answering()
    found.answer._take(0, [Response(1, "Hello")], found.handle)
    found.answer._fail(ApiError(500, "it broke"))
    assert found.wire.events()[-1] == {"type": "error", "error": {"type": "api_error", "message": "it broke"}}
    assert found.wire.has_ended


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (415, "invalid_request_error"),
        (429, "rate_limit_error"),
    ],
)
def test_errors_have_the_types_of_the_api(status: int, kind: str) -> None:
    assert anthropic_error(ApiError(status, "no"))["error"] == {"type": kind, "message": "no"}
