"""Defines ToolParser: the common part of parsers of tool calls."""

import secrets
import sys
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from trtllm_lite.runtime.session.guided_decoding import GuidedDecodingParams
from trtllm_lite.serve.parsers import guides
from trtllm_lite.serve.parsers.arguments import ArgumentsWriter
from trtllm_lite.serve.parsers.events import ToolCallArguments, ToolCallBegin, ToolCallEnd, ToolCallFault
from trtllm_lite.serve.parsers.text_reader import Fault, Steps, TextReader
from trtllm_lite.serve.parsers.tools import NamedFunction, Tool, ToolChoice

MAX_CALLS = 128
"""The maximum number of calls of a text; text after them is content."""


class ToolParser(TextReader):
    """Finds the tool calls of a text, in a model's own format; all other text is content.

    A call begins (ToolCallBegin) when its name is known and its first argument begins, or it has none. Names of unknown
    tools are reported as well, so that the client can tell the model of its mistake. A call that is malformed before it
    begins is content. If a call is malformed later, its arguments so far are closed to a JSON object, and the rest is
    dropped up to the call's end or the next call; ToolCallFault has the whole text. A call with complete arguments is
    complete, even if its end is missing. Space after a call is dropped.
    """

    needs_special_tokens: ClassVar[bool] = False
    """Whether the text has to include the names of special tokens, which mark the calls."""
    _markers: ClassVar[tuple[str, ...]] = ()
    """Texts that begin calls, anywhere in the text."""
    _ends: ClassVar[tuple[str, ...]] = ()
    """Texts that end calls."""
    _keys: ClassVar[tuple[tuple[str, ...], tuple[str, ...]]] = (("name",), ("arguments", "parameters"))
    """The keys of names, and of arguments, in calls that are JSON objects."""

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._num_begun = self._num_ended = 0
        self._arguments: ArgumentsWriter | None = None  # arguments of the current call
        self._head: tuple[str, str] | None = None  # id and name of the current call, until it begins
        super().__init__()

    @property
    def has_tool_calls(self) -> bool:
        """Whether at least one call has ended and is complete."""
        return self._num_ended > 0

    @property
    def is_inside_tool_call(self) -> bool:
        """Whether a call has begun and not ended: the text stops inside it, or it turned out to be malformed."""
        return self._num_begun > self._num_ended

    @classmethod
    def guide(cls, tools: Sequence[Tool], tool_choice: ToolChoice, *, parallel: bool) -> GuidedDecodingParams | None:
        """The grammar of a text that calls ``tools`` by ``tool_choice``; None if any text is valid.

        If a call is required, the text is exactly one call, or at least one with ``parallel`` and without a named
        function; arguments are those that the function's schema declares. If the model may choose, and a tool is
        strict, the arguments of strict tools follow their schemas wherever the text calls them. Raises ArgumentError
        for a function that is not among ``tools``.
        """
        required = guides.required(tools, tool_choice)
        if required is not None:
            forced = [guides.as_forced(tool) for tool in required]
            return cls._grammar_of_calls(forced, parallel=parallel and not isinstance(tool_choice, NamedFunction))
        if guides.has_strict(tools, tool_choice):
            return cls._grammar_with_calls([guides.as_strict_as(tool) for tool in tools])
        return None

    @classmethod
    @abstractmethod
    def _grammar_of_calls(cls, tools: Sequence[Tool], *, parallel: bool) -> GuidedDecodingParams:
        """The grammar of a text of calls of ``tools``: exactly one, or (``parallel``) one or more."""

    @classmethod
    @abstractmethod
    def _grammar_with_calls(cls, tools: Sequence[Tool]) -> GuidedDecodingParams:
        """The grammar of any text in which all calls are of ``tools``."""

    @classmethod
    def has_markers(cls) -> bool:
        """Whether markers show the beginnings of calls anywhere in a text."""
        return bool(cls._markers)

    def _new_id(self) -> str:
        return f"call_{secrets.token_hex(12)}"

    def _begin(self, name: str, call_id: str | None = None) -> None:
        """Begin a call, with the first of its arguments. Raises Fault after MAX_CALLS calls."""
        if self._num_begun == MAX_CALLS:
            raise Fault
        self._arguments, self._head = ArgumentsWriter(), (call_id or self._new_id(), name)

    def _emit_arguments(self, text: str) -> None:
        assert self._arguments is not None
        out = self._arguments.add(text)
        if not out:
            return
        if self._head is not None:
            self._max_held = sys.maxsize
            self._num_begun += 1
            self._events.append(ToolCallBegin(self._num_begun - 1, *self._head))
            self._head = None
        self._events.append(ToolCallArguments(self._num_begun - 1, out))

    def _end(self) -> None:
        self._let_go()
        self._arguments = None
        self._num_ended += 1
        self._events.append(ToolCallEnd(self._num_begun - 1))

    def _may_call(self) -> bool:
        return self._num_begun < MAX_CALLS

    def _try(self, call: Steps[None]) -> Steps[None]:
        """Read what may be a call. If it proves to be none before ToolCallBegin, the held text becomes content."""
        self._hold()
        try:
            yield from call
        except Fault:
            if self._arguments is None or self._head is not None:
                self._arguments = self._head = None
                self._give_back()
            else:
                yield from self._end_malformed(self._arguments)

    def _end_malformed(self, arguments: ArgumentsWriter) -> Steps[None]:
        """Handle a fault in a call that has begun: end the call if its arguments are complete, else report the fault.

        For a call that was cut off, a ToolCallFault is always reported.
        """
        if arguments.is_whole and not self._is_cut:
            self._end()
            yield from self._skip(r"[\]}\s]")  # closing brackets of the format
        else:
            if arguments.closing and not self._is_cut:
                self._events.append(ToolCallArguments(self._num_begun - 1, arguments.closing))
            self._arguments = None
            if self._ends or self._markers:
                yield from self._text_until([*self._ends, *self._markers], ignore)
            else:
                yield from self._rest(ignore)
        if self._ends:
            yield from self._match(*self._ends)
        if self._held is not None:
            self._events.append(ToolCallFault(self._num_begun - 1, self._taken_back()))
        yield from self._skip_space()

    def _read_end(self) -> Steps[None]:
        """Read space after a call's brackets, surplus brackets, and the text that ends the call."""
        yield from self._skip_space()
        self._hold()
        yield from self._skip(r"[\]}\s]")
        if self._ends and (yield from self._match(*self._ends)) is not None:
            self._let_go()
            yield from self._skip_space()
        else:
            self._give_back()

    def _call_object(self, *, needs_arguments: bool) -> Steps[None]:
        """Read a call as a JSON object: a name, arguments (or parameters), which are an object, and any other keys.

        The first of equal keys counts. Arguments before the name are held back until it is known. An object without
        arguments calls a function that takes none, unless ``needs_arguments``.
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
            if key in self._keys[0] and name is None:
                name = yield from self._json_string()
                if not name:
                    raise Fault
                if arguments is not None:
                    self._begin(name)
                    self._emit_arguments("".join(arguments))
                    arguments = []
            elif key in self._keys[1] and arguments is None:
                if (yield from self._peek()) != "{":
                    raise Fault
                arguments = []
                if name is not None:
                    self._begin(name)
                yield from self._json(self._emit_arguments if name is not None else arguments.append)
            else:
                yield from self._json(ignore)
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

    def _read(self) -> Steps[None]:
        while self._may_call():
            if (yield from self._text_until(self._markers, self._emit_text)) is None:
                return
            yield from self._try(self._call())
        yield from self._rest()

    @abstractmethod
    def _call(self) -> Steps[None]:
        """Read a marker and its call, or several calls, and the space after. Raises Fault if it is no call."""


class FormedCallParser(MarkedCallParser):
    """Finds calls whose arguments are JSON, all in one format."""

    _format: ClassVar[guides.CallFormat]

    @classmethod
    def _grammar_of_calls(cls, tools: Sequence[Tool], *, parallel: bool) -> GuidedDecodingParams:
        """Implements ToolParser."""
        return cls._format.of(tools, parallel=parallel)

    @classmethod
    def _grammar_with_calls(cls, tools: Sequence[Tool]) -> GuidedDecodingParams:
        """Implements ToolParser."""
        return cls._format.in_text(tools)


def ignore(text: str) -> None:
    """Drop text that is not needed."""
    del text
