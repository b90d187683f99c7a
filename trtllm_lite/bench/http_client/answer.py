"""Reads from one response of OpenAI's protocol when tokens came, and how many."""

import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trtllm_lite.bench.http_client.events import EventStream
from trtllm_lite.bench.http_client.response import Response
from trtllm_lite.common.printable import one_line
from trtllm_lite.errors import ServerError, shown

_DONE = b"[DONE]"
_QUOTED_BYTES = 300


@dataclass(frozen=True)
class Answer:
    """The answer to a request; ``chunk_times_s``: when each chunk with tokens came; counts are from the server's usage.

    A response that is no stream is one chunk. An embedding counts as a token. ``num_cached_tokens`` is None if the
    server does not tell.
    """

    chunk_times_s: Sequence[float]
    num_tokens: int
    prompt_len: int
    num_cached_tokens: int | None


def read_answer(response: Response, streamed: bool) -> Answer:
    """The answer in ``response``, a stream if ``streamed``. Raises ServerError if the response has no answer."""
    if response.status != 200:
        raise ServerError(_refusal(response), f"HTTP {response.status}")
    if streamed and response.events is None:
        raise ServerError(f"the server sent {_quoted(response.body)} where a stream was asked for", "no stream")
    if response.events is not None:
        return _read_stream(response.events)
    content = _parse(bytes(response.body))
    return _answer([response.end_s], _usage([_with_embeddings(content)]))


def _with_embeddings(content: dict[str, Any]) -> dict[str, Any]:
    """The content of a response; the usage of one with embeddings says how many they are."""
    rows, usage = content.get("data"), _part(content, "usage")
    if not isinstance(rows, list) or "completion_tokens" in usage:
        return content
    return {**content, "usage": {**usage, "completion_tokens": len(rows)}}


def _read_stream(events: EventStream) -> Answer:
    if not events.last or events.last[-1] != _DONE:
        raise ServerError(f"the stream ended after {len(events.times_s)} events without [DONE]", "no [DONE]")
    first = [_parse(data) for data in events.first if data != _DONE]
    last = [_parse(data) for data in events.last[:-1]]
    for event in (*first, *last):
        if "error" in event:
            raise ServerError(f"the stream has the error {shown(event['error'])}", "error in a stream")
    usage = _usage(last)
    begin, end = 0, len(events.times_s) - 1
    while begin < len(first) and _precedes_tokens(first[begin]):
        begin += 1
    while last and not last[-1].get("choices"):
        last.pop()
        end -= 1
    if last and _only_finishes(last[-1]) and end - begin != usage.get("completion_tokens"):
        end -= 1
    if begin >= end:
        raise ServerError("the stream has no chunk with tokens", "no tokens")
    return _answer(events.times_s[begin:end], usage)


def _precedes_tokens(event: dict[str, Any]) -> bool:
    """Whether a first event has only the role of a chat's message, or no choices."""
    deltas = [_part(choice, "delta") for choice in _choices(event)]
    return all("role" in delta and not _says_something(delta) for delta in deltas)


def _only_finishes(event: dict[str, Any]) -> bool:
    """Whether an event has only the finish reason, and no text."""
    choices = _choices(event)
    silent = not any(choice.get("text") or _says_something(_part(choice, "delta")) for choice in choices)
    return silent and any(choice.get("finish_reason") for choice in choices)


def _says_something(delta: dict[str, Any]) -> bool:
    return any(value for name, value in delta.items() if name != "role")


def _choices(event: dict[str, Any]) -> list[dict[str, Any]]:
    choices = event.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def _part(entry: dict[str, Any], name: str) -> dict[str, Any]:
    found = entry.get(name)
    return found if isinstance(found, dict) else {}


def _usage(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The last usage in ``events``. Raises ServerError if there is none."""
    for event in reversed(events):
        usage = _part(event, "usage")
        if all(type(usage.get(name)) is int for name in ("prompt_tokens", "completion_tokens")):
            return usage
    raise ServerError("the server does not say how many tokens it made (usage)", "no usage")


def _answer(times_s: Sequence[float], usage: dict[str, Any]) -> Answer:
    if usage["completion_tokens"] < 1:
        raise ServerError(f"the server made {usage['completion_tokens']} tokens", "no tokens")
    cached = _part(usage, "prompt_tokens_details").get("cached_tokens")
    known = cached if type(cached) is int else None
    return Answer(array("d", times_s), usage["completion_tokens"], usage["prompt_tokens"], known)


def _parse(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ServerError(f"the server sent {_quoted(data)}: expected a JSON object", "no JSON")
    return found


def _refusal(response: Response) -> str:
    wait = response.headers.get("retry-after")
    after = "" if wait is None else f", Retry-After: {one_line(wait)}"
    return f"the server answered HTTP {response.status}{after}: {_quoted(response.body)}"


def _quoted(data: bytes | bytearray) -> str:
    return one_line(bytes(data[:_QUOTED_BYTES]).decode("utf-8", "replace")) or "an empty body"
