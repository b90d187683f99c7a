"""Defines MistralParser: tool calls of Mistral's models, of all versions of their tokenizers.

``[TOOL_CALLS]`` is followed by a JSON array of objects with ``name`` and ``arguments``. Since version 11 it is followed
by one call: a name and a JSON object, between them ``[CALL_ID]`` and an id, or ``[ARGS]``, or both; further calls begin
with ``[TOOL_CALLS]`` again. All markers are special tokens. Ids have nine letters or digits, as Mistral's templates
demand.
"""

import json
import re
import secrets
import string
from collections.abc import Sequence
from typing import ClassVar

from trtllm_lite.runtime.session.grammar_markers import FREE
from trtllm_lite.runtime.session.guided_decoding import GuidedDecodingParams, Marker
from trtllm_lite.serve.parsers import guides
from trtllm_lite.serve.parsers.text_reader import Fault, Steps
from trtllm_lite.serve.parsers.tool_parser import MarkedCallParser
from trtllm_lite.serve.parsers.tools import Tool

_CALLS, _ID, _ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_VALID_ID = re.compile(r"[A-Za-z0-9]{9}")


class MistralParser(MarkedCallParser):
    """Parses what follows ``[TOOL_CALLS]``: an array of calls, or one call."""

    needs_special_tokens: ClassVar[bool] = True
    _markers: ClassVar[tuple[str, ...]] = (_CALLS,)

    def _new_id(self) -> str:
        return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))

    def _call(self) -> Steps[None]:
        yield from self._expect(_CALLS)
        yield from self._skip_space()
        if (yield from self._match("[")) is None:
            yield from self._named_call()
        else:
            yield from self._array()
        yield from self._skip_space()

    def _array(self) -> Steps[None]:
        separator = ","
        while separator == ",":
            yield from self._skip_space()
            yield from self._call_object(needs_arguments=False)
            yield from self._skip_space()
            self._hold()
            separator = yield from self._expect(",", "]")
        self._let_go()

    def _named_call(self) -> Steps[None]:
        name = yield from self._word(r"[\w.:/-]")
        if not name:
            raise Fault
        call_id = None
        yield from self._skip_space()
        if (yield from self._match(_ID)) is not None:
            yield from self._skip_space()
            call_id = yield from self._word("[A-Za-z0-9]")
            yield from self._skip_space()
        if (yield from self._match(_ARGUMENTS)) is not None:
            yield from self._skip_space()
        if (yield from self._peek()) != "{":
            raise Fault
        self._begin(name, call_id if call_id and _VALID_ID.fullmatch(call_id) else None)
        yield from self._json(self._emit_arguments)
        self._end()

    @classmethod
    def _grammar_of_calls(cls, tools: Sequence[Tool], *, parallel: bool) -> GuidedDecodingParams:
        """Implements ToolParser. The model chooses between an array and names, as its tokenizer's version has it."""
        again = "(calls named)*" if parallel else ""
        return _guide(tools, [f"start: calls (array | named {again})"], parallel=parallel)

    @classmethod
    def _grammar_with_calls(cls, tools: Sequence[Tool]) -> GuidedDecodingParams:
        """Implements ToolParser."""
        return _guide(tools, ["start: (before_calls (array | named))* FREE", f"FREE: /{FREE}/"], parallel=True)


def _guide(tools: Sequence[Tool], start: Sequence[str], *, parallel: bool) -> GuidedDecodingParams:
    numbers = range(len(tools))
    more = '(", " object)*' if parallel else ""
    lines = [
        *start,
        f'array: / ?/ "[" object {more} "]"',
        "object: " + " | ".join(f"object_{number}" for number in numbers),
        "named: " + " | ".join(f"named_{number}" for number in numbers),
    ]
    for number, tool in enumerate(tools):
        begin = guides.quoted(f'{{"name": {json.dumps(tool.name)}, "arguments": ')
        lines.append(f'object_{number}: {begin} arguments_{number} "}}"')
        lines.append(
            f"named_{number}: {guides.quoted(tool.name)} (id /[A-Za-z0-9]{{9}}/)? before_arguments? arguments_{number}"
        )
        lines.append(f"arguments_{number}: {guides.json_rule(tool.parameters)}")
    markers = [Marker("calls", _CALLS), Marker("id", _ID), Marker("before_arguments", _ARGUMENTS)]
    return guides.of_markers(lines, [*markers, Marker("before_calls", _CALLS, is_behind_text=True)])
