"""What the text of a model turns out to be: events, and the parser that gives them."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of what the model thought before it answered."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallBegin:
    """A call of the function ``name`` begins; ``index`` counts the calls of a text from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """A piece of a call's arguments. The pieces of a call that ends are, joined, a JSON object."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """The arguments of a call are whole."""

    index: int


Event = Content | Reasoning | ToolCallBegin | ToolCallArguments | ToolCallEnd


class OutputParser(Protocol):
    """Reads one text as it is generated.

    The events of a text are the same however it is cut into pieces, but for where the texts of neighbouring events of
    one kind are cut, and for the ids of calls, which are random. Nothing that is read raises.
    """

    @property
    def has_tool_calls(self) -> bool:
        """Whether at least one call has ended whole."""

    @property
    def is_inside_tool_call(self) -> bool:
        """Whether a call has begun and not ended: the text stops inside it, or it turned out to be malformed."""

    def push(self, text: str) -> list[Event]:
        """The events of the text's next piece."""

    def finish(self) -> list[Event]:
        """The text has ended: the events of what was held back. Nothing is pushed behind it."""


def join_events(events: list[Event]) -> list[Event]:
    """``events`` with the texts of neighbours of one kind, and of one call, joined."""
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


def _index(event: Event) -> int | None:
    return event.index if isinstance(event, ToolCallArguments) else None


def _join_last(joined: list[Event], texts: list[str]) -> None:
    """Give the last event the text of all ``texts``, which are then forgotten."""
    if len(texts) > 1:
        last, text = joined[-1], "".join(texts)
        if isinstance(last, ToolCallArguments):
            joined[-1] = ToolCallArguments(last.index, text)
        else:
            joined[-1] = Reasoning(text) if isinstance(last, Reasoning) else Content(text)
    texts.clear()
