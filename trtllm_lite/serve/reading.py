"""Reads what was generated for one choice, piece by piece: its text, as events, and how many tokens were what."""

from collections.abc import Sequence

from trtllm_lite.runtime.session.request import FinishReason, Response
from trtllm_lite.serve.parsers.events import Content, Event, OutputParser, Reasoning, ToolCallEnd


class ChoiceReader:
    """Turns responses into events by ``parser``, or takes all text as content if that is None.

    With ``one_call`` the choice ends with its first tool call, whatever is generated behind it.
    """

    def __init__(self, parser: OutputParser | None, *, one_call: bool = False) -> None:
        self._parser = parser
        self._one_call = one_call
        self.num_tokens = 0
        self.num_reasoning_tokens = 0
        self.finish_reason: str | None = None
        """Why the choice ended, in OpenAI's words; "abort" and "timeout" beside them."""
        self.has_answer = self._has_thoughts = False
        """Whether there was any content, or a call; the same of thoughts."""

    @property
    def is_empty(self) -> bool:
        """Whether the choice has ended without content and calls."""
        return self.finish_reason is not None and not self.has_answer

    @property
    def warning(self) -> str | None:
        """Why an answer is missing that the client is likely to expect."""
        if not self.is_empty or not self._has_thoughts or self.finish_reason != "length":
            return None
        return "the model's thoughts did not end, so that there is no answer: raise max_tokens"

    def read(self, responses: Sequence[Response]) -> list[Event]:
        """The events of the next responses, until the choice has a finish reason; behind that there are none."""
        events: list[Event] = []
        for response in responses:
            if self.finish_reason is not None:
                break
            found = self._events(response)
            self._note(found)
            if response.token_id is not None:
                self.num_tokens += 1
                if found and isinstance(found[-1], Reasoning):
                    self.num_reasoning_tokens += 1
            end = next((at for at, event in enumerate(found, 1) if isinstance(event, ToolCallEnd)), None)
            if self._one_call and end is not None:
                self.finish_reason = "tool_calls"
                return events + found[:end]
            events += found
            if response.finish_reason is not None:
                self.finish_reason = self._reason(response.finish_reason)
        return events

    def _note(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Reasoning):
                self._has_thoughts = True
            else:
                self.has_answer = True

    def _events(self, response: Response) -> list[Event]:
        text, parser = response.text, self._parser
        if parser is None:
            return [Content(text)] if text else []
        events = parser.push(text) if text else []
        if response.finish_reason is None:
            return events
        return events + parser.finish(is_cut=finish_reason(response.finish_reason) != "stop")

    def _reason(self, reason: FinishReason) -> str:
        """``tool_calls`` only for calls that are whole: what was cut off is no call (see vLLM's issue 53739)."""
        parser, word = self._parser, finish_reason(reason)
        if word == "stop" and parser is not None and parser.has_tool_calls and not parser.is_inside_tool_call:
            return "tool_calls"
        return word


def finish_reason(reason: FinishReason) -> str:
    """A finish reason in OpenAI's words; "abort" and "timeout" beside them."""
    return as_openai(reason.word)


def as_openai(word: str) -> str:
    """What OpenAI's API, as vLLM extends it, calls a finish reason of a RequestOutput."""
    return "abort" if word == FinishReason.CANCELLED.word else word
