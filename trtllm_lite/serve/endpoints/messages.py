"""/v1/messages and /v1/messages/count_tokens: Anthropic's Messages API."""

from functools import partial
from typing import Any

from trtllm_lite.runtime.session.prompts import check_chars
from trtllm_lite.serve.answer import Started, answer
from trtllm_lite.serve.api_error import ApiError
from trtllm_lite.serve.app import Application
from trtllm_lite.serve.bodies import read
from trtllm_lite.serve.bodies.chat import ChatBody
from trtllm_lite.serve.bodies.messages import MessagesBody, PromptFields, to_chat, to_prompt
from trtllm_lite.serve.conversation import render
from trtllm_lite.serve.endpoints.message_blocks import BlockEncoder
from trtllm_lite.serve.events import encode_json, named_event
from trtllm_lite.serve.http.messages import Request, Response
from trtllm_lite.serve.parts import ApiEvent, PartAnswer
from trtllm_lite.serve.served_model import ServedModel

_STOP_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}


def anthropic_error(error: ApiError) -> dict[str, Any]:
    """The body of an error in Anthropic's API."""
    kind = _ERROR_TYPES.get(error.status, "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


async def messages(app: Application, request: Request) -> Response | None:
    """Answer a conversation."""
    decode = app.decoder(request, MessagesBody)
    body = await read(request.body, lambda data: to_chat(decode(data)))
    return await answer(app, request, body, MessageAnswer)


async def count_tokens(app: Application, request: Request) -> Response:
    """The number of tokens of a conversation's prompt."""
    decode = app.decoder(request, PromptFields)
    body = await read(request.body, lambda data: to_prompt(decode(data)))
    model, _ = app.served(request, body.model)
    return await model.prepare(partial(_count_tokens, model, body))


def _count_tokens(model: ServedModel, body: ChatBody) -> Response:
    tokenizer, text = model.required_tokenizer(), render(model, body)
    check_chars("the conversation", text, tokenizer, model.session.limits.max_input_len)
    tokens = tokenizer.encode(text, add_special_tokens=body.add_special_tokens)
    return Response(200, encode_json({"input_tokens": len(tokens)}))


class MessageAnswer(PartAnswer):
    """The answer as a message of Anthropic's API, or as its events."""

    def __init__(self, started: Started) -> None:
        self._blocks = BlockEncoder()
        super().__init__(started, self._blocks)

    def _content(self) -> dict[str, Any]:
        self._encode_all()
        return {**self._head(), **self._ending(), "content": self._blocks.blocks}

    def _first(self) -> list[ApiEvent]:
        return [{"type": "message_start", "message": self._head()}]

    def _last(self) -> bytes:
        ending = self._ending()
        usage = ending.pop("usage")
        return self._encoded([{"type": "message_delta", "delta": ending, "usage": usage}, {"type": "message_stop"}])

    def _fail(self, error: ApiError) -> None:
        self._writer.write(named_event(anthropic_error(error)))
        self._writer.end()

    def _head(self) -> dict[str, Any]:
        return {
            "id": f"msg_{self._request.id}",
            "type": "message",
            "role": "assistant",
            "model": self._request.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._tokens(),
        }

    def _ending(self) -> dict[str, Any]:
        """The stop reason; ``tool_use`` only if all calls are complete."""
        reason = self._reader.finish_reason or ""
        stop_word = self._stop_word if reason == "stop" else None
        stop_reason = "stop_sequence" if stop_word is not None else _STOP_REASONS.get(reason, reason)
        return {"stop_reason": stop_reason, "stop_sequence": stop_word, "usage": self._tokens()}

    def _tokens(self) -> dict[str, Any]:
        """The numbers of tokens; cached input tokens, known at the end, are not part of ``input_tokens``."""
        usage = self._usage()
        num_cached = usage["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": usage["prompt_tokens"] - num_cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": num_cached,
            "output_tokens": usage["completion_tokens"],
        }
