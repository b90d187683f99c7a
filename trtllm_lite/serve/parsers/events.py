"""Defines the events of a model's text, and the interface of the parser that emits them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of the model's thoughts before its answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallBegin:
    """A call of the function ``name`` begins; ``index`` counts the calls of a text from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """A piece of a call's arguments. The joined pieces of a call that ends are a JSON object (see ToolCallFault)."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """The arguments of a call are complete."""

    index: int


@dataclass(frozen=True, slots=True)
class ToolCallFault:
    """A call that had begun is malformed, or the text was cut off inside it.

    ``text`` is the call as the model wrote it. The joined pieces of a malformed call's arguments are a JSON object,
    closed after the last part that could be parsed. Those of a call that was cut off are left open, so that they cannot
    be mistaken for complete arguments.
    """

    index: int
    text: str


Event = Content | Reasoning | ToolCallBegin | ToolCallArguments | ToolCallEnd | ToolCallFault


class OutputParser(Protocol):
    """Reads one text as it is generated.

    The events of a text do not depend on how it is cut into pieces, except for the cuts between neighbouring events of
    one kind, and for the ids of calls, which are random. No text makes a parser raise.
    """

    @property
    def has_tool_calls(self) -> bool:
        """Whether at least one call has ended and is complete."""

    @property
    def is_inside_tool_call(self) -> bool:
        """Whether a call has begun and not ended: the text stops inside it, or it turned out to be malformed."""

    def push(self, text: str) -> list[Event]:
        """Return the events of the text's next piece."""

    def finish(self, *, is_cut: bool = False) -> list[Event]:
        """Return the events of the text held back so far, when the text has ended, or with ``is_cut`` was cut off."""


def join_events(events: list[Event]) -> list[Event]:
    """``events`` with neighbouring texts of one kind, and of one call, joined."""
    joined: list[Event] = []
    texts: list[str] = []
    for event in events:
        if not isinstance(event, Content | Reasoning | ToolCallArguments):
            _join_last(joined, texts)
            joined.append(event)
        elif texts and type(event) is type(joined[-1]) and _index(event) == _index(joined[-1]):
            texts.append(event.text)
        else:
            _join_last(joined, texts)
            joined.append(event)
            texts.append(event.text)
    _join_last(joined, texts)
    return joined


def without_faults(events: Iterable[Event]) -> list[Event]:
    """``events`` of a whole text, with malformed calls turned into content, as the model wrote them."""
    kept: list[Event] = []
    since = 0  # the position where the open call began
    for event in events:
        if isinstance(event, ToolCallBegin):
            since = len(kept)
        if isinstance(event, ToolCallFault):
            kept[since:] = [Content(event.text)]
        else:
            kept.append(event)
    return join_events(kept)


def _index(event: Event) -> int | None:
    return event.index if isinstance(event, ToolCallArguments) else None


def _join_last(joined: list[Event], texts: list[str]) -> None:
    """Give the last event the text of all ``texts``, and clear these."""
    if len(texts) > 1:
        last, text = joined[-1], "".join(texts)
        if isinstance(last, ToolCallArguments):
            joined[-1] = ToolCallArguments(last.index, text)
        else:
            joined[-1] = Reasoning(text) if isinstance(last, Reasoning) else Content(text)
    texts.clear()
