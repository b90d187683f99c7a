"""What the text of a model turns out to be: events, and the parser that gives them."""

from collections.abc import Iterable
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
    """A piece of a call's arguments. The pieces of a call that ends are, joined, a JSON object (see ToolCallFault)."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """The arguments of a call are whole."""

    index: int


@dataclass(frozen=True, slots=True)
class ToolCallFault:
    """A call that has begun is none: it is malformed, or the text was cut off inside it.

    ``text`` is how the model wrote it. The pieces of the arguments of a malformed one are, joined, a JSON object, which
    was closed behind the last that could be understood. Those of one that was cut off are left open, so that nobody
    takes them for whole.
    """

    index: int
    text: str


Event = Content | Reasoning | ToolCallBegin | ToolCallArguments | ToolCallEnd | ToolCallFault


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

    def finish(self, *, is_cut: bool = False) -> list[Event]:
        """The text has ended, by itself or ``is_cut`` off: the events of what was held back. It is the last call."""


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


def without_faults(events: Iterable[Event]) -> list[Event]:
    """``events`` of a whole text, in which calls that are none are content, as the model wrote them."""
    kept: list[Event] = []
    since = 0  # where the call that is open began
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
    """Give the last event the text of all ``texts``, which are then forgotten."""
    if len(texts) > 1:
        last, text = joined[-1], "".join(texts)
        if isinstance(last, ToolCallArguments):
            joined[-1] = ToolCallArguments(last.index, text)
        else:
            joined[-1] = Reasoning(text) if isinstance(last, Reasoning) else Content(text)
    texts.clear()
