"""/v1/chat/completions."""

import time
from collections.abc import Sequence
from typing import Any

from trtllm_lite.runtime.api.request_output import CompletionOutput, logprobs_of
from trtllm_lite.runtime.session.request import Response as Step
from trtllm_lite.runtime.session.request_handle import RequestHandle
from trtllm_lite.serve.answer import Answer, Started, answer
from trtllm_lite.serve.app import Application
from trtllm_lite.serve.bodies import read
from trtllm_lite.serve.bodies.chat import ChatBody
from trtllm_lite.serve.events import DONE, encode_json, event
from trtllm_lite.serve.http.messages import Request, Response
from trtllm_lite.serve.logprobs import chat_logprobs, prompt_rows
from trtllm_lite.serve.parsers.events import (
    Content,
    Event,
    Reasoning,
    ToolCallArguments,
    ToolCallBegin,
    without_faults,
)
from trtllm_lite.serve.reading import ChoiceReader


async def chat_completions(app: Application, request: Request) -> Response | None:
    """Answer a conversation."""
    body = await read(request.body, app.decoder(request, ChatBody))
    return await answer(app, request, body, ChatAnswer)


class ChatAnswer(Answer):
    """An answer in the form of OpenAI's chat API."""

    def __init__(self, started: Started) -> None:
        super().__init__(started)
        self._is_plain = started.conversation.parser() is None and not self._body.logprobs
        self._is_plain &= not self._body.return_token_ids and not self._body.usage_always
        self._id, self._created = f"chatcmpl-{self._request.id}", int(time.time())
        self._has_begun = [False] * len(self._readers)
        head = encode_json(self._head("chat.completion.chunk"))[:-1]
        self._before = [
            b'data: %b,"choices":[{"index":%d,"delta":' % (head, index) for index in range(len(self._readers))
        ]

    # Whole answers.

    def _content(self) -> dict[str, Any]:
        output = self._generation.result()
        choices = [self._choice(completion) for completion in output.outputs]
        content = {
            **self._head("chat.completion"),
            "choices": choices,
            "usage": self._usage(),
            "prompt_logprobs": None if output.prompt_logprobs is None else prompt_rows(output.prompt_logprobs),
        }
        if self._body.return_token_ids:
            content["prompt_token_ids"] = output.prompt_token_ids
        if content["prompt_logprobs"] is None:
            del content["prompt_logprobs"]
        return content

    def _choice(self, completion: CompletionOutput) -> dict[str, Any]:
        reader = self._readers[completion.index]
        handle = self._generation.handles[completion.index]
        events = without_faults(reader.read(handle.responses))
        message = _message(events, include_reasoning=self._body.include_reasoning)
        choice: dict[str, Any] = {
            "index": completion.index,
            "message": message,
            "logprobs": None,
            "finish_reason": reader.finish_reason,
            "stop_reason": completion.stop_reason,
            **_warnings(reader),
        }
        if completion.logprobs is not None:
            rows = list(zip(completion.token_ids, completion.logprobs, strict=True))
            choice["logprobs"] = self._logprobs(rows[: reader.num_tokens])
        if self._body.return_token_ids:
            choice["token_ids"] = completion.token_ids[: reader.num_tokens]
        return choice

    # Streams.

    def _last(self) -> bytes:
        usage = self._usage()
        if not self._body.usage_at_end:
            return DONE
        return event({**self._head("chat.completion.chunk"), "choices": [], "usage": usage}) + DONE

    def _take(self, index: int, steps: Sequence[Step], handle: RequestHandle) -> None:
        reader = self._readers[index]
        if self._is_plain and len(steps) == 1 and self._has_begun[index] and steps[0].finish_reason is None:
            reader.num_tokens += 1
            text = steps[0].text
            if text:  # the path of nearly every token
                reader.has_answer = True
                before = self._before[index]
                self._writer.write(b'%b{"content":%b},"finish_reason":null}]}\n\n' % (before, encode_json(text)))
            return
        deltas = [delta for found in reader.read(steps) if (delta := self._delta(found))]
        chunks = []
        if not self._has_begun[index]:
            self._has_begun[index] = True
            chunks.append(self._chunk(index, {"role": "assistant", "content": ""}, {}))
        extra = self._extra(steps)
        if extra and not deltas:
            deltas.append({"content": ""})
        for number, delta in enumerate(deltas):
            chunks.append(self._chunk(index, delta, extra if number == 0 else {}))
        if reader.finish_reason is not None:
            last = steps[-1].token_id
            rest = {"stop_reason": handle.stop_reason(last), **_warnings(reader)}
            chunks.append(self._chunk(index, {}, rest, reader.finish_reason))
        if chunks:
            self._writer.write(b"".join(chunks))

    def _chunk(
        self, index: int, delta: dict[str, Any], extra: dict[str, Any], finish_reason: str | None = None
    ) -> bytes:
        rest = {**extra, "finish_reason": finish_reason}
        usage = b',"usage":' + encode_json(self._usage()) if self._body.usage_always else b""
        return b"%b%b,%b]%b}\n\n" % (self._before[index], encode_json(delta), encode_json(rest)[1:], usage)

    def _extra(self, steps: Sequence[Step]) -> dict[str, Any]:
        """The fields of a chunk besides its delta."""
        extra: dict[str, Any] = {}
        tokens = [step for step in steps if step.token_id is not None]
        if self._body.logprobs:
            rows = [
                (token, logprobs_of(token, step.logprobs)) for step in tokens if (token := step.token_id) is not None
            ]
            extra["logprobs"] = self._logprobs(rows) if rows else None
        if self._body.return_token_ids:
            extra["token_ids"] = [step.token_id for step in tokens]
        return extra

    def _delta(self, found: Event) -> dict[str, Any] | None:
        match found:
            case Content(text):
                return {"content": text}
            case Reasoning(text):
                return {"reasoning_content": text} if self._body.include_reasoning else None
            case ToolCallBegin(index, call_id, name):
                function = {"name": name, "arguments": ""}
                return {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}
            case ToolCallArguments(index, text):
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
            case _:
                return None

    # Whole answers and streams.

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._request.model}

    def _logprobs(self, rows: Sequence[Any]) -> dict[str, Any]:
        as_ids = self._body.return_tokens_as_token_ids
        return chat_logprobs(rows, self._body.top_logprobs or 0, self._model.token_texts, as_ids=as_ids)


def _warnings(reader: ChoiceReader) -> dict[str, Any]:
    """The warnings of a choice that has ended, in a field besides OpenAI's."""
    return {} if reader.warning is None else {"warnings": [reader.warning]}


def _message(events: Sequence[Event], *, include_reasoning: bool) -> dict[str, Any]:
    """The assistant's message."""
    content = "".join(found.text for found in events if isinstance(found, Content))
    reasoning = "".join(found.text for found in events if isinstance(found, Reasoning))
    calls = [_call(found, events) for found in events if isinstance(found, ToolCallBegin)]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": content if content or not calls else None,
        "refusal": None,
    }
    if reasoning and include_reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def _call(begin: ToolCallBegin, events: Sequence[Event]) -> dict[str, Any]:
    pieces = [found.text for found in events if isinstance(found, ToolCallArguments) and found.index == begin.index]
    return {"id": begin.id, "type": "function", "function": {"name": begin.name, "arguments": "".join(pieces)}}
