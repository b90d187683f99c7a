"""Serves APIs whose answers are lists of parts: PartEncoder makes the events of parts, PartAnswer sends them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from trtllm_lite.runtime.session.request import Response as Step
from trtllm_lite.runtime.session.request_handle import RequestHandle
from trtllm_lite.serve.answer import Answer, Started
from trtllm_lite.serve.events import named_event
from trtllm_lite.serve.parsers.events import (
    Content,
    Event,
    Reasoning,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
    ToolCallFault,
    without_faults,
)

ApiEvent = dict[str, Any]


@dataclass
class Part:
    """A stretch of an answer of one kind; parts are numbered from 0.

    ``call`` is set for calls, whose pieces are their arguments. ``is_whole``, known when the part has ended: whether it
    was not cut off and, for a call, whether its arguments are a JSON object.
    """

    kind: Literal["text", "reasoning", "call"]
    number: int
    call: ToolCallBegin | None = None
    pieces: list[str] = field(default_factory=list)
    is_whole: bool = False

    @property
    def text(self) -> str:
        """The text of the part so far."""
        return "".join(self.pieces)


class PartEncoder(ABC):
    """Turns a parser's events into an API's events about parts: the beginning of a part, its pieces, and its end."""

    def __init__(self) -> None:
        self._part: Part | None = None
        self._num_parts = 0

    def take(self, events: Sequence[Event]) -> list[ApiEvent]:
        """The API's events for the parser's next events."""
        return [told for event in events for told in self._told(event)]

    def finish(self, *, is_whole: bool) -> list[ApiEvent]:
        """The API's events at the text's end, which was cut off unless ``is_whole``."""
        return self._end_part(is_whole=is_whole)

    @abstractmethod
    def _begin(self, part: Part) -> list[ApiEvent]:
        """The events for the beginning of a part."""

    @abstractmethod
    def _piece(self, part: Part, text: str) -> ApiEvent:
        """The event for a piece of a part."""

    @abstractmethod
    def _end(self, part: Part) -> list[ApiEvent]:
        """The events for the end of a part."""

    def _told(self, event: Event) -> list[ApiEvent]:
        match event:
            case Content(text):
                return self._told_text("text", text)
            case Reasoning(text):
                return self._told_text("reasoning", text)
            case ToolCallBegin():
                return self._begin_part("call", event)
            case ToolCallArguments(_, text):
                return [self._told_piece(text)]
            case ToolCallEnd():
                return self._end_part(is_whole=True, ends_call=True)
            case ToolCallFault():
                return self._end_part(is_whole=False)

    def _told_text(self, kind: Literal["text", "reasoning"], text: str) -> list[ApiEvent]:
        begun = [] if self._part is not None and self._part.kind == kind else self._begin_part(kind)
        return [*begun, self._told_piece(text)]

    def _told_piece(self, text: str) -> ApiEvent:
        assert self._part is not None
        self._part.pieces.append(text)
        return self._piece(self._part, text)

    def _begin_part(
        self, kind: Literal["text", "reasoning", "call"], call: ToolCallBegin | None = None
    ) -> list[ApiEvent]:
        ended = self._end_part(is_whole=True)
        self._part = Part(kind, self._num_parts, call)
        self._num_parts += 1
        return ended + self._begin(self._part)

    def _end_part(self, *, is_whole: bool, ends_call: bool = False) -> list[ApiEvent]:
        """End the current part, if there is one; a call is complete only if the parser has seen its end."""
        part, self._part = self._part, None
        if part is None:
            return []
        part.is_whole = is_whole and (part.kind != "call" or ends_call)
        return self._end(part)


class PartAnswer(Answer):
    """An answer of parts; each request has one answer."""

    def __init__(self, started: Started, encoder: PartEncoder) -> None:
        super().__init__(started)
        self._encoder = encoder
        (self._reader,) = self._readers
        (self._handle,) = self._generation.handles

    def _encode_all(self) -> None:
        """Pass the whole answer to the encoder. Raises EngineError if there is no answer."""
        self._generation.result()
        self._encoder.take(without_faults(self._reader.read(self._handle.responses)))
        self._encoder.finish(is_whole=self._is_whole)

    @property
    def _is_whole(self) -> bool:
        """Whether the answer ended by itself."""
        return self._reader.finish_reason in ("stop", "tool_calls")

    @property
    def _stop_word(self) -> str | None:
        """The stop word that ended the answer, or None."""
        last = self._handle.responses[-1].token_id if self._handle.responses else None
        reason = self._handle.stop_reason(last)
        return reason if isinstance(reason, str) else None

    def _take(self, index: int, steps: Sequence[Step], handle: RequestHandle) -> None:  # noqa: ARG002
        told = [] if self._writer.has_begun else self._first()
        told += self._encoder.take(self._reader.read(steps))
        if self._reader.finish_reason is not None:
            told += self._encoder.finish(is_whole=self._is_whole)
        if told:
            self._writer.write(self._encoded(told))

    def _encoded(self, told: Sequence[ApiEvent]) -> bytes:
        """The bytes of events."""
        return b"".join([named_event(content) for content in told])

    @abstractmethod
    def _first(self) -> list[ApiEvent]:
        """The events before any part."""
