"""/v1/chat/completions."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from trtllm_lite.errors import TrtllmLiteError
from trtllm_lite.runtime.api.generation import Generation
from trtllm_lite.runtime.api.request_output import CompletionOutput, logprobs_of
from trtllm_lite.runtime.lora.request import LoRARequest
from trtllm_lite.runtime.session.request import Response as Step
from trtllm_lite.runtime.session.request_handle import RequestHandle
from trtllm_lite.serve.api_error import api_error
from trtllm_lite.serve.app import FIELDS, Application
from trtllm_lite.serve.bodies import decode
from trtllm_lite.serve.bodies.chat import ChatBody
from trtllm_lite.serve.conversation import Conversation, prepare
from trtllm_lite.serve.events import DONE, EventWriter, encode_json, event
from trtllm_lite.serve.following import stream, until_ended
from trtllm_lite.serve.http.messages import Request, Response
from trtllm_lite.serve.logprobs import chat_logprobs
from trtllm_lite.serve.parsers.events import Content, Event, Reasoning, ToolCallArguments, ToolCallBegin
from trtllm_lite.serve.reading import ChoiceReader
from trtllm_lite.serve.served_model import ServedModel
from trtllm_lite.serve.usage import usage_of


async def chat_completions(app: Application, request: Request) -> Response | None:
    """Answer a conversation."""
    body = decode(request.body, ChatBody)
    model, adapter = app.served(request, body.model)
    with model.admission(body.n):
        try:
            conversation, generation = await model.prepare(partial(_start, model, adapter, body))
        except TrtllmLiteError as error:
            failure = api_error(error, FIELDS)
            names = {"prompt": "messages", "guided_decoding": body.form_field}
            failure.param = names.get(failure.param or "", failure.param)
            raise failure from error
        answer = _Answer(request, model, body, conversation, generation)
        return await (answer.stream() if body.stream else answer.whole())


def _start(model: ServedModel, adapter: LoRARequest | None, body: ChatBody) -> tuple[Conversation, Generation]:
    conversation = prepare(model, adapter, body)
    return conversation, model.start(conversation.prompt)


class _Answer:
    """The answer to one request, whole or as events."""

    def __init__(
        self, request: Request, model: ServedModel, body: ChatBody, conversation: Conversation, generation: Generation
    ) -> None:
        self._request = request
        self._model = model
        self._body = body
        self._generation = generation
        self._conversation = conversation
        self._readers = [self._reader() for _ in generation.handles]
        self._tells_reasoning = conversation.reasoning_parser is not None
        self._is_plain = conversation.parser() is None and not body.logprobs and not body.return_token_ids
        self._is_plain &= not body.usage_always
        self._id, self._created = f"chatcmpl-{request.id}", int(time.time())

    # The whole answer.

    async def whole(self) -> Response:
        """The response, when all choices have ended. Raises EngineError if one failed."""
        if self._conversation.one_call:
            await self._until_called()
        else:
            await until_ended(self._model, [self._generation])
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
        return Response(200, encode_json(content))

    def _choice(self, completion: CompletionOutput) -> dict[str, Any]:
        reader = self._readers[completion.index]
        handle = self._generation.handles[completion.index]
        message = _message(reader.read(handle.responses), include_reasoning=self._body.include_reasoning)
        choice: dict[str, Any] = {
            "index": completion.index,
            "message": message,
            "logprobs": None,
            "finish_reason": reader.finish_reason,
            "stop_reason": completion.stop_reason,
        }
        if completion.logprobs is not None:
            rows = list(zip(completion.token_ids, completion.logprobs, strict=True))
            choice["logprobs"] = self._logprobs(rows[: reader.num_tokens])
        if self._body.return_token_ids:
            choice["token_ids"] = completion.token_ids[: reader.num_tokens]
        return choice

    async def _until_called(self) -> None:
        """Wait for the ends of all choices, and end each at its first call."""
        readers = [self._reader() for _ in self._readers]

        def read(index: int, steps: Sequence[Step], handle: RequestHandle) -> None:
            readers[index].read(steps)
            if readers[index].finish_reason is not None:
                handle.cancel()

        await stream(self._model, [self._generation], read, self._request.connection)

    # A stream.

    async def stream(self) -> None:
        """Send events until all choices have ended."""
        self._writer = EventWriter(self._request)
        self._has_begun = [False] * len(self._readers)
        head = encode_json(self._head("chat.completion.chunk"))[:-1]
        self._before = [
            b'data: %b,"choices":[{"index":%d,"delta":' % (head, index) for index in range(len(self._readers))
        ]
        try:
            await stream(self._model, [self._generation], self._take, self._request.connection)
        except Exception as error:
            self._usage()
            if not self._writer.has_begun:
                raise
            self._writer.fail(api_error(error))
            return
        usage = self._usage()
        end = DONE
        if self._body.usage_at_end:
            end = event({**self._head("chat.completion.chunk"), "choices": [], "usage": usage}) + DONE
        self._writer.write(end)
        self._writer.end()

    def _take(self, index: int, steps: Sequence[Step], handle: RequestHandle) -> None:
        """Send what is new of a choice."""
        reader = self._readers[index]
        if reader.finish_reason is not None:
            return  # the choice has ended with a call
        if self._is_plain and len(steps) == 1 and self._has_begun[index] and steps[0].finish_reason is None:
            reader.num_tokens += 1
            text = steps[0].text
            if text:  # the path of nearly every token
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
            if steps[-1].finish_reason is None:
                handle.cancel()
            last = steps[-1].token_id
            chunks.append(self._chunk(index, {}, {"stop_reason": _stop_reason(handle, last)}, reader.finish_reason))
        if chunks:
            self._writer.write(b"".join(chunks))

    def _chunk(
        self, index: int, delta: dict[str, Any], extra: dict[str, Any], finish_reason: str | None = None
    ) -> bytes:
        rest = {**extra, "finish_reason": finish_reason}
        usage = b',"usage":' + encode_json(self._usage()) if self._body.usage_always else b""
        return b"%b%b,%b]%b}\n\n" % (self._before[index], encode_json(delta), encode_json(rest)[1:], usage)

    def _extra(self, steps: Sequence[Step]) -> dict[str, Any]:
        """What a chunk has beside its delta."""
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

    # Both.

    def _reader(self) -> ChoiceReader:
        return ChoiceReader(self._conversation.parser(), one_call=self._conversation.one_call)

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._request.model}

    def _usage(self) -> dict[str, Any]:
        num_tokens = sum(reader.num_tokens for reader in self._readers)
        reasoning = sum(reader.num_reasoning_tokens for reader in self._readers) if self._tells_reasoning else None
        return usage_of(self._request, [self._generation], num_tokens, reasoning)

    def _logprobs(self, rows: Sequence[Any]) -> dict[str, Any]:
        as_ids = self._body.return_tokens_as_token_ids
        return chat_logprobs(rows, self._body.top_logprobs or 0, self._model.token_texts, as_ids=as_ids)


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


def _stop_reason(handle: RequestHandle, last_token: int | None) -> Any:
    return handle.stop_reason(last_token)


def prompt_rows(rows: Sequence[Any]) -> list[Any]:
    """vLLM's ``prompt_logprobs``: for each token of the prompt, by token id."""
    return [
        None
        if row is None
        else {str(token): {"logprob": found.logprob, "rank": found.rank} for token, found in row.items()}
        for row in rows
    ]
