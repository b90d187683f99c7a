"""Writes grammars that make a model call tools in its own format, with arguments that follow their schemas."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cached_property
from typing import Any

from trtllm_lite.errors import ArgumentError, shown
from trtllm_lite.runtime.session.grammar_markers import FREE
from trtllm_lite.runtime.session.grammar_texts import SCHEMA_OPTIONS
from trtllm_lite.runtime.session.guided_decoding import GrammarSource, GuidedDecodingParams, Marker
from trtllm_lite.serve.parsers.tools import NamedFunction, Tool, ToolChoice

_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
# Keywords of a schema that allow an object other properties than those it declares.
_SAY_MORE = frozenset(
    (
        *("additionalProperties", "patternProperties", "propertyNames", "unevaluatedProperties"),
        *("$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"),
    )
)


@dataclass(frozen=True, kw_only=True)
class MarkedGrammar(GuidedDecodingParams):
    """A grammar, ``grammar``, in which some rules are left to the tokenizer, which knows special tokens.

    See GrammarSource for the fields.
    """

    markers: tuple[Marker, ...] = ()
    has_thoughts: bool = False

    @cached_property
    def source(self) -> GrammarSource:
        """The source to compile."""
        assert self.grammar is not None
        return GrammarSource("grammar", "lark", self.grammar, self.markers, self.has_thoughts)


class Slot(Enum):
    """A variable part of a call: JSON_NAME is the function's name in quotes, and NUMBER any number."""

    NAME = auto()
    JSON_NAME = auto()
    NUMBER = auto()
    ARGUMENTS = auto()


@dataclass(frozen=True, kw_only=True)
class CallFormat:
    """The format of calls whose arguments are JSON. All texts may contain names of special tokens.

    ``marker`` is a text that occurs only before calls: before each call if it is ``repeated``, or else before the
    first. A ``call`` consists of literals and slots; ``separator`` is between calls, before the marker if there is one,
    ``first`` before all of them and ``end`` after them.
    """

    marker: str
    repeated: bool
    call: tuple[str | Slot, ...]
    first: str = ""
    separator: str = ""
    end: str = ""

    def of(self, tools: Sequence[Tool], *, parallel: bool) -> MarkedGrammar:
        """The grammar of a text of calls, or of one call if not ``parallel``."""
        return self._grammar("start: marker calls", tools, parallel=parallel)

    def in_text(self, tools: Sequence[Tool]) -> MarkedGrammar:
        """The grammar of any text that goes on with calls of ``tools`` after the marker."""
        return self._grammar(f"start: (before_calls calls)* FREE\nFREE: /{FREE}/", tools, parallel=not self.repeated)

    def _grammar(self, start: str, tools: Sequence[Tool], *, parallel: bool) -> MarkedGrammar:
        again = "separator marker call" if self.repeated else "separator call"
        lines = [start, f"calls: first call ({again})* end" if parallel else "calls: first call end"]
        lines.append("call: " + " | ".join(f"call_{number}" for number in range(len(tools))))
        for number, tool in enumerate(tools):
            slots = {
                Slot.NAME: quoted(tool.name),
                Slot.JSON_NAME: quoted(json.dumps(tool.name)),
                Slot.NUMBER: "/[0-9]{1,3}/",
                Slot.ARGUMENTS: f"arguments_{number}",
            }
            parts = [slots[part] if isinstance(part, Slot) else f"part_{n}" for n, part in enumerate(self.call)]
            lines.append(f"call_{number}: {' '.join(parts)}")
            lines.append(f"arguments_{number}: {json_rule(tool.parameters)}")
        markers = [Marker(name, getattr(self, name)) for name in ("marker", "first", "separator", "end")]
        markers += [Marker(f"part_{n}", part) for n, part in enumerate(self.call) if isinstance(part, str)]
        return of_markers(lines, [*markers, Marker("before_calls", self.marker, is_behind_text=True)])


def of_markers(lines: Sequence[str], markers: Sequence[Marker], *, has_thoughts: bool = False) -> MarkedGrammar:
    """The grammar of ``lines``, with those ``markers`` that they name."""
    text = "\n".join(lines)
    used = [marker for marker in markers if re.search(rf"\b{marker.rule}\b(?!:)", text)]
    return MarkedGrammar(grammar=text, markers=tuple(used), has_thoughts=has_thoughts)


def required(tools: Sequence[Tool], tool_choice: ToolChoice) -> list[Tool] | None:
    """The tools of which one must be called, with parameters as far as grammars enforce them; None if none must be.

    Raises ArgumentError if there is no such tool.
    """
    if isinstance(tool_choice, NamedFunction):
        named = [tool for tool in tools if tool.name == tool_choice.name][:1]
        if not named:
            names = [tool.name for tool in tools]
            raise ArgumentError(
                f"tool_choice names {shown(tool_choice.name)}: expected one of the tools {shown(names)}"
            )
        return [_as_far_as_enforced(tool) for tool in named]
    if tool_choice == "required":
        if not tools:
            raise ArgumentError("tool_choice is 'required', and there are no tools: pass some")
        return [_as_far_as_enforced(tool) for tool in tools]
    return None


def _as_far_as_enforced(tool: Tool) -> Tool:
    """The tool, without keywords that no grammar enforces (``uniqueItems``) unless it is strict."""
    if tool.strict:
        return tool
    leniently = {SCHEMA_OPTIONS: {"lenient": True}}
    parameters = {**tool.parameters, **leniently}
    properties = parameters.get("properties")
    if isinstance(properties, Mapping):  # some parsers make schemas of their own from these
        parameters["properties"] = {
            name: {**schema, **leniently} if isinstance(schema, Mapping) else schema
            for name, schema in properties.items()
        }
    return replace(tool, parameters=parameters)


def has_strict(tools: Sequence[Tool], tool_choice: ToolChoice) -> bool:
    """Whether the model may call a tool that is strict."""
    return tool_choice == "auto" and any(tool.strict for tool in tools)


def as_strict_as(tool: Tool) -> Tool:
    """The tool, with any arguments allowed unless it is strict."""
    return tool if tool.strict else replace(tool, parameters=_ANY_OBJECT)


def as_forced(tool: Tool) -> Tool:
    """The tool for a call that is forced: only declared arguments, on one line.

    Otherwise a model that is forced to make an unlikely call invents arguments, or writes white space until its tokens
    are used up. If a schema specifies additional arguments, these stay allowed.
    """
    schema, options = dict(tool.parameters), tool.parameters.get(SCHEMA_OPTIONS, {})
    if isinstance(options, Mapping):  # else the grammar's compiler reports the error
        schema[SCHEMA_OPTIONS] = {"whitespace_pattern": " ", **options}
    if "properties" in schema and _SAY_MORE.isdisjoint(schema):
        schema["additionalProperties"] = False
    return replace(tool, parameters=schema)


def of_rules(
    rules: Sequence[str],
    num_calls: int,
    *,
    first: str = "call",
    separator: str,
    end: str = "",
    parallel: bool,
    unless_begins: str | None = None,
) -> GuidedDecodingParams:
    """The grammar of calls with ``separator`` between them (one call if not ``parallel``), and ``end``.

    ``rules`` has a rule ``call_0`` … for a call of each function; ``first`` names the rule of the first call, if it is
    written differently. With ``unless_begins``, a text that does not begin with this regular expression is valid as
    well. The first literal of the first call must then match it, or its beginning would be taken for such a text.
    """
    more = f" ({quoted(separator)} call)*" if parallel else ""
    lines = [
        "start: calls" + (" | FREE" if unless_begins else ""),
        f"calls: {first}{more} {quoted(end)}",
        "call: " + " | ".join(f"call_{number}" for number in range(num_calls)),
        *rules,
    ]
    if unless_begins:
        lines.append(rf"FREE: /(?s:.*)/ & ~/{unless_begins}(?s:.*)/")
    return GuidedDecodingParams(grammar="\n".join(lines))


def in_free_text(rules: Sequence[str], triggers: Sequence[str]) -> GuidedDecodingParams:
    """The grammar of any text that goes on with the rule ``tag_n`` of ``rules`` after ``triggers[n]``."""
    tags = " | ".join(f"before_{number} tag_{number}" for number in range(len(triggers)))
    lines = [f"start: ({tags})* FREE", "FREE: /(?s:.*)/", *rules]
    lines += [f"before_{number}[lazy]: /(?s:.*)/ {quoted(trigger)}" for number, trigger in enumerate(triggers)]
    return GuidedDecodingParams(grammar="\n".join(lines))


def quoted(text: str) -> str:
    """``text`` as a literal of a grammar."""
    return json.dumps(text, ensure_ascii=False)


def json_rule(schema: Mapping[str, Any]) -> str:
    """The rule of a grammar for JSON of ``schema``. Raises ArgumentError if JSON cannot express the schema."""
    try:
        return f"%json {json.dumps(dict(schema), ensure_ascii=False, allow_nan=False)}"
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(f"parameters of a tool are {shown(schema)}: expected what JSON can express") from error
