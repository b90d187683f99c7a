"""/v1/responses: OpenAI's Responses API, without storage."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from trtllm_lite.serve.answer import Started, answer
from trtllm_lite.serve.api_error import ApiError
from trtllm_lite.serve.app import Application
from trtllm_lite.serve.bodies import read
from trtllm_lite.serve.bodies.chat import ChatBody
from trtllm_lite.serve.bodies.responses import ResponsesBody, to_chat
from trtllm_lite.serve.endpoints.response_items import ItemEncoder
from trtllm_lite.serve.http.messages import Request, Response
from trtllm_lite.serve.parts import ApiEvent, PartAnswer

_TAKEN_OVER = ("instructions", "max_output_tokens", "metadata", "temperature", "top_p", "user")


async def responses(app: Application, request: Request) -> Response | None:
    """Answer an input."""
    decode = app.decoder(request, ResponsesBody)
    body, chat = await read(request.body, lambda data: _with_chat(decode(data)))
    return await answer(app, request, chat, partial(ResponseAnswer, body))


def _with_chat(body: ResponsesBody) -> tuple[ResponsesBody, ChatBody]:
    return body, to_chat(body)


async def stored_response(app: Application, request: Request) -> Response:  # noqa: ARG001
    """Responses are not stored."""
    raise ApiError(404, "responses are not stored: the answer to a request is all there is of it", code="not_found")


class ResponseAnswer(PartAnswer):
    """The answer as a response object, or as its events; responses repeat the fields of the request ``asked``."""

    def __init__(self, asked: ResponsesBody, started: Started) -> None:
        self._items = ItemEncoder()
        super().__init__(started, self._items)
        self._head = {
            "id": f"resp_{self._request.id}",
            "object": "response",
            "created_at": int(time.time()),
            "model": self._request.model,
            **_settings(asked),
        }
        self._num_sent = 0

    def _content(self) -> dict[str, Any]:
        self._encode_all()
        return self._ended()

    def _first(self) -> list[ApiEvent]:
        response = {**self._head, "status": "in_progress", "output": [], "usage": None}
        return [{"type": f"response.{word}", "response": response} for word in ("created", "in_progress")]

    def _last(self) -> bytes:
        response = self._ended()
        return self._encoded([{"type": f"response.{response['status']}", "response": response}])

    def _fail(self, error: ApiError) -> None:
        failure = {"code": "server_error", "message": error.message}
        response = {**self._head, "status": "failed", "error": failure, "output": self._items.items, "usage": None}
        self._writer.write(self._encoded([{"type": "response.failed", "response": response}]))
        self._writer.end()

    def _encoded(self, told: Sequence[ApiEvent]) -> bytes:
        numbered = [{**content, "sequence_number": number} for number, content in enumerate(told, self._num_sent)]
        self._num_sent += len(told)
        return super()._encoded(numbered)

    def _ended(self) -> dict[str, Any]:
        reason = self._reader.finish_reason
        details = None if self._is_whole else {"reason": "max_output_tokens" if reason == "length" else reason}
        return {
            **self._head,
            "status": "completed" if self._is_whole else "incomplete",
            "incomplete_details": details,
            "output": self._items.items,
            "usage": _usage(self._usage()),
        }


def _settings(asked: ResponsesBody) -> dict[str, Any]:
    """The fields of the request that a response repeats."""
    form = {"type": "text"} if asked.text is None or asked.text.format is None else asked.text.format
    return {
        **{name: getattr(asked, name) for name in _TAKEN_OVER},
        "background": False,
        "error": None,
        "incomplete_details": None,
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": None if asked.reasoning is None else asked.reasoning.effort, "summary": None},
        "store": False,
        "text": {"format": form},
        "tool_choice": msgspec.to_builtins(asked.tool_choice or "auto"),
        "tools": msgspec.to_builtins(asked.tools or []),
        "truncation": "disabled",
    }


def _usage(usage: dict[str, Any]) -> dict[str, Any]:
    """The numbers of tokens by the names of this API."""
    reasoning = usage.get("completion_tokens_details", {}).get("reasoning_tokens", 0)
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},  # writes cost nothing
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": usage["total_tokens"],
    }
