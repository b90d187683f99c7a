"""Defines PythonicParser: tool calls of Llama 4, and of Llama 3.2's small models, written as Python.

A text that calls is one list of calls, ``[f(a=1, b="x"), g()]``, from its first character on. Arguments have names, and
are literals (``python_literal.py``); nothing is evaluated. They are reported as JSON.
"""

import json
from collections.abc import Iterator, Sequence

from trtllm_lite.runtime.session.guided_decoding import GuidedDecodingParams
from trtllm_lite.serve.parsers import guides
from trtllm_lite.serve.parsers.python_literal import LiteralReader
from trtllm_lite.serve.parsers.schema import Property, properties_of
from trtllm_lite.serve.parsers.text_reader import Fault, Steps
from trtllm_lite.serve.parsers.tool_parser import ToolParser
from trtllm_lite.serve.parsers.tools import Tool

_CALL_BEGINS = r"\s*\[\s*[A-Za-z_][A-Za-z0-9_.\-]*\s*\("


class PythonicParser(ToolParser, LiteralReader):
    """Parses calls that are one Python list, at the beginning of the text."""

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        self._name, self._before, self._has_begun = "", "", False
        super().__init__(tools)

    def _read(self) -> Steps[None]:
        yield from self._try(self._calls())
        yield from self._rest()

    def _calls(self) -> Steps[None]:
        yield from self._skip_space()
        yield from self._expect("[")
        separator = ","
        while separator == ",":
            yield from self._skip_space()
            yield from self._call()
            self._hold()
            yield from self._skip_space()
            separator = yield from self._expect(",", "]")
        self._let_go()
        yield from self._skip_space()

    def _call(self) -> Steps[None]:
        self._name, self._before, self._has_begun = (yield from self._identifier()), "{", False
        yield from self._skip_space()
        yield from self._expect("(")
        yield from self._skip_space()
        while (yield from self._match(")")) is None:
            yield from self._argument()
            yield from self._skip_space()
            if (yield from self._expect(",", ")")) == ")":
                break
            yield from self._skip_space()
        self._before = "{" if self._before == "{" else ""
        self._emit("}")
        self._end()

    def _argument(self) -> Steps[None]:
        name = yield from self._identifier()
        yield from self._skip_space()
        yield from self._expect("=")
        yield from self._skip_space()
        self._before += f"{json.dumps(name, ensure_ascii=False)}: "
        yield from self._literal(self._emit)
        self._before = ", "

    def _emit(self, text: str) -> None:
        """Emit a piece of the arguments' JSON, with text that must precede it. The first piece begins the call."""
        if not self._has_begun:
            self._begin(self._name)
            self._has_begun = True
        self._emit_arguments(self._before + text)
        self._before = ""

    def _identifier(self) -> Steps[str]:
        word = yield from self._word(r"[\w.-]")
        if not word:
            raise Fault
        return word

    @classmethod
    def _grammar_of_calls(cls, tools: Sequence[Tool], *, parallel: bool) -> GuidedDecodingParams:
        """Implements ToolParser. Arguments come in the schema's order, as JSON, which the parser reads as well."""
        return _guide(tools, parallel)

    @classmethod
    def _grammar_with_calls(cls, tools: Sequence[Tool]) -> GuidedDecodingParams:
        """Implements ToolParser."""
        return _guide(tools, parallel=True, unless_begins=_CALL_BEGINS)


def _guide(tools: Sequence[Tool], parallel: bool, unless_begins: str | None = None) -> GuidedDecodingParams:
    rules = list(call_rules(tools))
    rules.append("opening: " + " | ".join(f"opening_{number}" for number in range(len(tools))))
    rules += [f"opening_{number}: {_call_rule(number, tool, '[')}" for number, tool in enumerate(tools)]
    return guides.of_rules(
        rules, len(tools), first="opening", separator=", ", end="]", parallel=parallel, unless_begins=unless_begins
    )


def call_rules(tools: Sequence[Tool]) -> Iterator[str]:
    """The rules ``call_0`` … for a call of each tool."""
    yield "value: %json {}"
    yield "NAME: /[A-Za-z_][A-Za-z0-9_]*/"
    for number, tool in enumerate(tools):
        yield f"call_{number}: {_call_rule(number, tool, '')}"
        yield from _argument_rules(number, properties_of(tool.parameters))


def _call_rule(number: int, tool: Tool, before: str) -> str:
    return f'{guides.quoted(f"{before}{tool.name}(")} first_{number}_0 ")"'


def _argument_rules(call: int, properties: Sequence[Property] | None) -> Iterator[str]:
    """Rules of a call from each argument on: ``first_…`` if no other was written before it, else ``next_…``."""
    if properties is None:
        yield f'first_{call}_0: (any_{call} (", " any_{call})*)?'
        yield f'any_{call}: NAME "=" value'
        return
    for place, argument in enumerate(properties):
        value, following = f"value_{call}_{place}", f"next_{call}_{place + 1}"
        yield f"{value}: {guides.json_rule(argument.schema)}"
        for state, separator in (("first", ""), ("next", ", ")):
            rule = f"{guides.quoted(f'{separator}{argument.name}=')} {value} {following}"
            without = "" if argument.is_required else f" | {state}_{call}_{place + 1}"
            yield f"{state}_{call}_{place}: {rule}{without}"
    yield f'first_{call}_{len(properties)}: ""'
    yield f'next_{call}_{len(properties)}: ""'
