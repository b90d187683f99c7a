"""Defines HarmonyParser: thoughts, answers and calls of gpt-oss, in OpenAI's harmony format.

A text is messages: ``<|start|>assistant<|channel|>CHANNEL<|message|>`` … ``<|end|>``, the first ``<|start|>assistant``
being part of the prompt. The channel ``analysis`` is reasoning; ``final``, and ``commentary`` without a recipient, are
content. A message to ``functions.NAME`` is a call, with arguments as JSON, whatever its channel; the recipient follows
the role or the channel. A message to any other recipient is a call if a tool has that name, and else reasoning: the
model wrongly believes that it has such a tool. ``<|call|>`` and ``<|return|>`` also end messages, if the text has the
model's end tokens.

The package openai-harmony reads token ids, and needs a vocabulary that it downloads, so this parser reads text
instead; the tests compare it with the package, which then gets the same vocabulary from another package.
"""

import re
from collections.abc import Sequence
from typing import ClassVar

from trtllm_lite.runtime.session.grammar_markers import FREE
from trtllm_lite.runtime.session.guided_decoding import GuidedDecodingParams, Marker
from trtllm_lite.runtime.session.reasoning import Thoughts
from trtllm_lite.serve.parsers import guides
from trtllm_lite.serve.parsers.events import Content, Reasoning
from trtllm_lite.serve.parsers.text_reader import Fault, Steps
from trtllm_lite.serve.parsers.tool_parser import ToolParser, ignore
from trtllm_lite.serve.parsers.tools import Tool

_START, _CHANNEL, _CONSTRAIN, _MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
THOUGHTS = Thoughts((_CHANNEL,), ((f"{_CHANNEL}final",), (_MESSAGE,)))
"""Markers of thoughts, which are all text before the answer; a note that it is JSON may follow the answer's channel."""
_ADDRESS, _FUNCTIONS = " to=", "functions."
_RECIPIENT = re.compile(r"\bto=(\S+)")
_WORDS = r"[^<\r\n]"


class HarmonyParser(ToolParser):
    """Parses messages of gpt-oss, including thoughts. ``starts_inside``: the prompt ends with the head of a thought."""

    needs_special_tokens: ClassVar[bool] = True
    _markers: ClassVar[tuple[str, ...]] = (_START, _CHANNEL)
    _ends: ClassVar[tuple[str, ...]] = _ENDS

    def __init__(self, tools: Sequence[Tool] = (), *, starts_inside: bool = False) -> None:
        self._starts_inside = starts_inside
        super().__init__(tools)

    def _read(self) -> Steps[None]:
        if self._starts_inside:
            yield from self._body(Reasoning)
        else:
            yield from self._try(self._first_message())
        while (yield from self._text_until([_START, _CHANNEL], self._emit_text)) is not None:
            yield from self._try(self._message())

    def _first_message(self) -> Steps[None]:
        """Read a message whose role is in the prompt, if a recipient follows."""
        before = yield from self._match(_ADDRESS)
        if before is None:
            self._let_go()
        else:
            yield from self._message(before)

    def _message(self, before: str = "") -> Steps[None]:
        """Read a message after ``before``, which has been read."""
        yield from self._match(_START)
        role = before + (yield from self._word(_WORDS))
        channel = ""
        while (marker := (yield from self._expect(_CHANNEL, _CONSTRAIN, _MESSAGE))) != _MESSAGE:
            words = yield from self._word(_WORDS)
            channel += f" {words}" if marker == _CHANNEL else ""  # names end at special tokens
        recipient = _RECIPIENT.search(f"{role} {channel}")
        if role.split()[:1] not in ([], ["assistant"]) and not before:  # the model imagines a message of somebody else
            recipient = None
        if recipient is not None and self._tools:
            yield from self._addressed(recipient[1])
        else:
            yield from self._body(Reasoning if channel.split()[:1] == ["analysis"] else Content)

    def _addressed(self, recipient: str) -> Steps[None]:
        name = recipient.removeprefix(_FUNCTIONS)
        if name == recipient and name not in self._tools:
            yield from self._body(Reasoning)
            return
        yield from self._skip_space()
        if not name or (yield from self._peek()) != "{":
            raise Fault
        self._begin(name)
        yield from self._json(self._emit_arguments)
        self._end()
        yield from self._text_until([*_ENDS, _START, _CHANNEL], ignore)  # text that does not belong to the arguments
        yield from self._match(*_ENDS)

    def _body(self, kind: type[Content] | type[Reasoning]) -> Steps[None]:
        """Read the rest of a message as text of this kind."""
        self._let_go()
        self._kind = kind
        end = yield from self._text_until([*_ENDS, _START, _CHANNEL], self._emit_text)
        self._kind = Content
        if end in _ENDS:
            yield from self._expect(*_ENDS)

    @classmethod
    def _grammar_of_calls(cls, tools: Sequence[Tool], *, parallel: bool) -> GuidedDecodingParams:
        """Implements ToolParser. Thoughts and words to the user may come before the calls."""
        more = "(end begin call)*" if parallel else ""
        return _guide(tools, [f"start: (silent end begin)* call {more}"])

    @classmethod
    def _grammar_with_calls(cls, tools: Sequence[Tool]) -> GuidedDecodingParams:
        """Implements ToolParser."""
        return _guide(tools, ["start: ((silent | call) end begin)* (silent | final | call)"])


_MARKERS = [
    Marker("begin", f"{_START}assistant"),
    Marker("end", _ENDS[0]),
    Marker("analysis", f"{_CHANNEL}analysis{_MESSAGE}"),
    Marker("comment", f"{_CHANNEL}commentary{_MESSAGE}"),
    Marker("answer", f"{_CHANNEL}final"),
    Marker("to_channel", f"{_CHANNEL}commentary{_ADDRESS}{_FUNCTIONS}"),
    Marker("to", f"{_ADDRESS}{_FUNCTIONS}"),
    Marker("channel", f"{_CHANNEL}commentary"),
    Marker("constrain", _CONSTRAIN),
    Marker("message", _MESSAGE),
]


def _guide(tools: Sequence[Tool], start: Sequence[str]) -> GuidedDecodingParams:
    """The grammar in which messages without calls are ``silent`` or the ``final`` one; the last ends with the text."""
    lines = [
        *start,
        f"silent: (analysis | comment) /{FREE}/",
        f"final: answer (/ ?/ constrain /[a-z]+/)? message /{FREE}/",
        "call: " + " | ".join(f"call_{number}" for number in range(len(tools))),
    ]
    for number, tool in enumerate(tools):
        name = guides.quoted(tool.name)
        kind = '(/ ?/ constrain "json" | " json")?'
        lines.append(f"call_{number}: (to_channel {name} | to {name} channel) {kind} message arguments_{number}")
        lines.append(f"arguments_{number}: {guides.json_rule(tool.parameters)}")
    return guides.of_markers(lines, _MARKERS, has_thoughts=True)
