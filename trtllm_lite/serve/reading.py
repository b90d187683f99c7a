"""Reads the generated text of one choice, piece by piece, as events, and counts the tokens of each kind."""

from collections.abc import Sequence

from trtllm_lite.runtime.session.request import FinishReason, Response
from trtllm_lite.serve.parsers.events import Content, Event, OutputParser, Reasoning, ToolCallEnd


class ChoiceReader:
    """Turns responses into events by ``parser``; without a parser all text is content.

    With ``one_call`` the choice ends with its first tool call, even if generation goes on.
    """

    def __init__(self, parser: OutputParser | None, *, one_call: bool = False) -> None:
        self._parser = parser
        self._one_call = one_call
        self.num_tokens = 0
        self.num_reasoning_tokens = 0
        self.finish_reason: str | None = None
        """The finish reason in OpenAI's words, or "abort" or "timeout"; None while the choice runs."""
        self.has_answer = self._has_thoughts = False
        """Whether there was any content or call; and whether there were thoughts."""

    @property
    def is_empty(self) -> bool:
        """Whether the choice has ended without content and calls."""
        return self.finish_reason is not None and not self.has_answer

    @property
    def warning(self) -> str | None:
        """The reason why an expected answer is missing, or None."""
        if not self.is_empty or not self._has_thoughts or self.finish_reason != "length":
            return None
        return "the model's thoughts did not end, so that there is no answer: raise max_tokens"

    def read(self, responses: Sequence[Response]) -> list[Event]:
        """The events of the next responses, until the choice has a finish reason; later responses have none."""
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
        """The finish reason; ``tool_calls`` only for complete calls, as in vLLM's issue 53739."""
        parser, word = self._parser, finish_reason(reason)
        if word == "stop" and parser is not None and parser.has_tool_calls and not parser.is_inside_tool_call:
            return "tool_calls"
        return word


def finish_reason(reason: FinishReason) -> str:
    """A finish reason in OpenAI's words, or "abort" or "timeout"."""
    return as_openai(reason.word)


def as_openai(word: str) -> str:
    """The word of OpenAI's API, as extended by vLLM, for a finish reason of a RequestOutput."""
    return "abort" if word == FinishReason.CANCELLED.word else word
