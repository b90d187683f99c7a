"""Defines Answer: follows the generation that answers a conversation, and sends the result, whole or as events."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from trtllm_lite.errors import TrtllmLiteError
from trtllm_lite.runtime.api.generation import Generation
from trtllm_lite.runtime.lora.request import LoRARequest
from trtllm_lite.runtime.session.request import Response as Step
from trtllm_lite.runtime.session.request_handle import RequestHandle
from trtllm_lite.serve.api_error import ApiError, api_error
from trtllm_lite.serve.app import Application, error_about
from trtllm_lite.serve.bodies.chat import ChatBody
from trtllm_lite.serve.conversation import Conversation, prepare
from trtllm_lite.serve.events import EventWriter, encode_json
from trtllm_lite.serve.following import stream, until_ended
from trtllm_lite.serve.http.messages import Request, Response
from trtllm_lite.serve.reading import ChoiceReader
from trtllm_lite.serve.served_model import Prompt, ServedModel
from trtllm_lite.serve.turns import MAX_QUICK_BYTES
from trtllm_lite.serve.usage import usage_of


@dataclass(frozen=True, eq=False)
class Started:
    """A request for the answer to a conversation, while the answer is generated."""

    request: Request
    model: ServedModel
    body: ChatBody
    conversation: Conversation
    generation: Generation


async def answer(
    app: Application, request: Request, body: ChatBody, form: "Callable[[Started], Answer]"
) -> Response | None:
    """Generate the answer to a conversation, and send it as ``form`` says: whole or as a stream."""
    model, adapter = app.served(request, body.model, body.request_id)
    with model.admission(body.n):
        try:
            conversation, (generation,) = await model.begin(
                partial(_prepare, model, adapter, body), is_quick=_is_quick(request, model, body)
            )
        except TrtllmLiteError as error:
            raise error_about(error, {"prompt": "messages", "guided_decoding": body.grammar_field}) from error
        made = form(Started(request, model, body, conversation, generation))
        return await (made.stream() if body.stream else made.whole())


def _is_quick(request: Request, model: ServedModel, body: ChatBody) -> bool:
    """Whether the conversation is short and quick to prepare."""
    template = model.required_tokenizer().chat_template
    is_short = len(request.body) <= MAX_QUICK_BYTES and body.n == 1 and not body.tools and body.is_quick
    return is_short and template is not None and template.was_quick


def _prepare(model: ServedModel, adapter: LoRARequest | None, body: ChatBody) -> tuple[Conversation, list[Prompt]]:
    conversation = prepare(model, adapter, body)
    return conversation, [conversation.prompt]


class Answer(ABC):
    """The answer to one request. Subclasses give it the form of an API."""

    def __init__(self, started: Started) -> None:
        self._request, self._model, self._body = started.request, started.model, started.body
        self._generation = started.generation
        self._conversation = started.conversation
        self._readers = self._new_readers()
        self._tells_reasoning = started.conversation.reasoning_parser is not None
        self._writer = EventWriter(started.request)

    async def whole(self) -> Response:
        """The response, when all choices have ended. Raises EngineError if a choice failed."""
        if self._conversation.one_call:
            await self._until_called()
        else:
            await until_ended(self._model, [self._generation])
        if not self._body.logprobs and self._body.prompt_logprobs is None:
            response = self._response()
        else:
            response = await self._model.prepare(self._response)
        self._note_empty()
        return response

    def _response(self) -> Response:
        return Response(200, encode_json(self._content()))

    async def stream(self) -> None:
        """Send events until all choices have ended."""
        take = self._take_until_called if self._conversation.one_call else self._take
        try:
            await stream(self._model, [self._generation], take, self._request.connection)
        except Exception as error:
            if not self._writer.has_begun:
                raise
            self._fail(api_error(error))
            return
        finally:
            self._usage()  # for the access log, even if the client has gone away
        self._note_empty()
        self._writer.write(self._last())
        self._writer.end()

    def _note_empty(self) -> None:
        """Count the choices without an answer, and put a warning into the access log."""
        for reader in self._readers:
            if reader.is_empty:
                self._model.empty_answers[str(reader.finish_reason)] += 1
            if reader.warning is not None:
                self._request.warning = reader.warning

    async def _until_called(self) -> None:
        """Wait for the ends of all choices, and end each at its first tool call."""
        readers = self._new_readers()

        def read(index: int, steps: Sequence[Step], handle: RequestHandle) -> None:
            readers[index].read(steps)
            if readers[index].finish_reason is not None:
                handle.cancel()

        await stream(self._model, [self._generation], read, self._request.connection)

    def _take_until_called(self, index: int, steps: Sequence[Step], handle: RequestHandle) -> None:
        """Send the new part of a choice, which ends at its first tool call."""
        if self._readers[index].finish_reason is None:
            self._take(index, steps, handle)
            if self._readers[index].finish_reason is not None:
                handle.cancel()

    def _new_readers(self) -> list[ChoiceReader]:
        conversation = self._conversation
        one_call = conversation.one_call
        return [ChoiceReader(conversation.parser(), one_call=one_call) for _ in self._generation.handles]

    @abstractmethod
    def _content(self) -> dict[str, Any]:
        """The body of a whole answer."""

    @abstractmethod
    def _take(self, index: int, steps: Sequence[Step], handle: RequestHandle) -> None:
        """Send the new part of a choice."""

    @abstractmethod
    def _last(self) -> bytes:
        """The encoded events that end a stream."""

    def _fail(self, error: ApiError) -> None:
        """End a stream that has begun, with an error."""
        self._writer.fail(error)

    def _usage(self) -> dict[str, Any]:
        """OpenAI's ``usage``, which the access log gets as well."""
        num_tokens = sum(reader.num_tokens for reader in self._readers)
        reasoning = sum(reader.num_reasoning_tokens for reader in self._readers) if self._tells_reasoning else None
        return usage_of(self._request, [self._generation], num_tokens, reasoning)
