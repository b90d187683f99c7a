"""Answers requests with given texts, without a server and a model."""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests.unit.serve.parsing import TOOLS, pieces_of
from trtllm_lite.runtime.session.request import FinishReason, Response
from trtllm_lite.serve.answer import Started
from trtllm_lite.serve.bodies.chat import ChatBody
from trtllm_lite.serve.events import encode_json
from trtllm_lite.serve.http.messages import Request
from trtllm_lite.serve.parsers import make_parser
from trtllm_lite.serve.parts import PartAnswer

NUM_PROMPT_TOKENS, NUM_CACHED_TOKENS = 5, 3


class Wire:
    """A connection, and the stream that is opened on it."""

    def __init__(self) -> None:
        self.data = b""
        self.has_ended = False

    def open_stream(self, headers: dict[str, str]) -> "Wire":
        assert headers == {"X-Request-Id": "1"}
        return self

    def write(self, data: bytes) -> None:
        assert data
        self.data += data

    def end(self) -> None:
        self.has_ended = True

    def events(self) -> list[dict[str, Any]]:
        """The data of all events, whose names are their types."""
        events = []
        for block in self.data.decode().removesuffix("\n\n").split("\n\n"):
            name, data = block.split("\n")
            events.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {events[-1]['type']}"
        return events


class Answering:
    """An answer, made by ``form``, of a model with Hermes's format of tool calls and Qwen3's reasoning tags."""

    def __init__(self, form: Callable[[Started], PartAnswer]) -> None:
        self.wire = Wire()
        request: Any = Request("POST", "/", "", {}, b"", self.wire, 0.0, id="1", model="m")  # type: ignore[arg-type]
        prompt = SimpleNamespace(prompt_ids=range(NUM_PROMPT_TOKENS))
        self.handle = SimpleNamespace(request=prompt, timings=None, responses=[], stop_reason=lambda _: None)
        parser = make_parser(tool_parser="hermes", reasoning_parser="qwen3", tools=TOOLS)
        conversation: Any = SimpleNamespace(parser=lambda: parser, reasoning_parser="qwen3", one_call=False)
        generation: Any = SimpleNamespace(handles=[self.handle], result=lambda: None)
        model: Any = None
        self.answer = form(Started(request, model, ChatBody(messages=[]), conversation, generation))

    def whole(self, text: str, reason: FinishReason) -> dict[str, Any]:
        """The content of the whole answer."""
        self._end([Response(1, text), Response(2, "", reason)])
        content: dict[str, Any] = json.loads(encode_json(self.answer._content()))
        return content

    def streamed(self, text: str, reason: FinishReason, size: int) -> list[dict[str, Any]]:
        """The events of an answer whose tokens have ``size`` characters each."""
        steps = [Response(1, piece) for piece in pieces_of(text, size)]
        for step in steps:
            self.answer._take(0, [step], self.handle)
        last = Response(2, "", reason)
        self._end([*steps, last])
        self.answer._take(0, [last], self.handle)
        self.wire.write(self.answer._last())
        return self.wire.events()

    def _end(self, responses: list[Response]) -> None:
        self.handle.responses = responses
        self.handle.timings = SimpleNamespace(num_cached_tokens=NUM_CACHED_TOKENS)
