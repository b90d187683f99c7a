"""ToolParser: what parsers of tool calls have in common."""

import secrets
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from trtllm_lite.runtime.session.guided_decoding import GuidedDecodingParams
from trtllm_lite.serve.parsers.events import ToolCallArguments, ToolCallBegin, ToolCallEnd
from trtllm_lite.serve.parsers.text_reader import Fault, Steps, TextReader
from trtllm_lite.serve.parsers.tools import Tool, ToolChoice

MAX_CALLS = 128
"""Most calls of a text; what follows them is content."""


class ToolParser(TextReader):
    """Finds the tool calls of a text, in a model's own form; what is no call is content.

    A call begins (ToolCallBegin) when its name is known and its arguments begin; all names are reported, those of no
    tool of the request too, as the client can tell the model of its mistake. What turns out to be malformed before that
    is content, all of it. What turns out to be malformed later cannot be taken back: the call does not end, and at the
    fault the text goes on as content. Space behind a call belongs to the form, and is dropped.
    """

    needs_special_tokens: ClassVar[bool] = False
    """Whether the text must have the names of special tokens, which mark the calls."""

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._num_begun = self._num_ended = 0
        super().__init__()

    @property
    def has_tool_calls(self) -> bool:
        """Whether at least one call has ended whole."""
        return self._num_ended > 0

    @property
    def is_inside_tool_call(self) -> bool:
        """Whether a call has begun and not ended: the text stops inside it, or it turned out to be malformed."""
        return self._num_begun > self._num_ended

    @classmethod
    @abstractmethod
    def guide(cls, tools: Sequence[Tool], tool_choice: ToolChoice, *, parallel: bool) -> GuidedDecodingParams | None:
        """The form of a text that calls ``tools`` as ``tool_choice`` says; None where any text is right.

        Where a call is required the text is one call, or with ``parallel`` at least one, and nothing else; arguments
        follow the function's schema. Where the model may choose, and a tool is strict, arguments of strict tools follow
        their schemas wherever the text calls them. Raises ArgumentError for a function that is none of ``tools``, and
        where calls of this form cannot be required.
        """

    def _new_id(self) -> str:
        return f"call_{secrets.token_hex(12)}"

    def _begin(self, name: str, call_id: str | None = None) -> None:
        """A call begins, so that what is held is understood. Raises Fault where there are MAX_CALLS."""
        if self._num_begun == MAX_CALLS:
            raise Fault
        self._let_go()
        self._num_begun += 1
        self._events.append(ToolCallBegin(self._num_begun - 1, call_id or self._new_id(), name))

    def _emit_arguments(self, text: str) -> None:
        self._events.append(ToolCallArguments(self._num_begun - 1, text))

    def _end(self) -> None:
        self._num_ended += 1
        self._events.append(ToolCallEnd(self._num_begun - 1))

    def _may_call(self) -> bool:
        return self._num_begun < MAX_CALLS

    def _try(self, call: Steps[None]) -> Steps[None]:
        """Read what may be a call. Where it turns out to be none, what is held of it is content."""
        self._hold()
        try:
            yield from call
        except Fault:
            self._give_back()

    def _call_object(self, *, needs_arguments: bool) -> Steps[None]:
        """Read a call as a JSON object: a name, arguments (or parameters), which are an object, and anything else.

        Of equal keys the first counts. Arguments before the name are held back until it is known. Without arguments it
        is a call of a function that takes none, unless ``needs_arguments``.
        """
        yield from self._expect("{")
        name: str | None = None
        arguments: list[str] | None = None
        while True:
            yield from self._skip_space()
            key = yield from self._json_string()
            yield from self._skip_space()
            yield from self._expect(":")
            yield from self._skip_space()
            if key == "name" and name is None:
                name = yield from self._json_string()
                if not name:
                    raise Fault
                if arguments is not None:
                    self._begin(name)
                    self._emit_arguments("".join(arguments))
                    arguments = []
            elif key in ("arguments", "parameters") and arguments is None:
                if (yield from self._peek()) != "{":
                    raise Fault
                arguments = []
                if name is not None:
                    self._begin(name)
                yield from self._json(self._emit_arguments if name is not None else arguments.append)
            else:
                yield from self._json(_ignore)
            yield from self._skip_space()
            if (yield from self._expect(",", "}")) == "}":
                break
        if name is None or (arguments is None and needs_arguments):
            raise Fault
        if arguments is None:
            self._begin(name)
            self._emit_arguments("{}")
        self._end()


class MarkedCallParser(ToolParser):
    """Finds calls that begin with one of ``_markers``, anywhere in the text."""

    _markers: ClassVar[tuple[str, ...]]

    def _read(self) -> Steps[None]:
        while self._may_call():
            if (yield from self._text_until(self._markers, self._emit_text)) is None:
                return
            yield from self._try(self._call())
        yield from self._rest()

    @abstractmethod
    def _call(self) -> Steps[None]:
        """Read a marker and its call, or several, and the space behind. Raises Fault where it is none."""


def _ignore(text: str) -> None:
    del text
