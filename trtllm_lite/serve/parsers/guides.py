"""Guides: what makes a model's text call tools in its own form, with arguments of their schemas."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trtllm_lite.errors import ArgumentError, shown
from trtllm_lite.runtime.session.guided_decoding import STRUCTURAL_TAG, GuidedDecodingParams
from trtllm_lite.serve.parsers.tools import NamedFunction, Tool, ToolChoice

_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True)
class Frame:
    """A call of one function: what stands before its arguments, their JSON schema, and what stands behind them."""

    begin: str
    schema: Mapping[str, Any]
    end: str


def required(tools: Sequence[Tool], tool_choice: ToolChoice) -> list[Tool] | None:
    """The tools of which one must be called; None if none must be. Raises ArgumentError if there is no such tool."""
    if isinstance(tool_choice, NamedFunction):
        named = [tool for tool in tools if tool.name == tool_choice.name][:1]
        if not named:
            names = [tool.name for tool in tools]
            raise ArgumentError(
                f"tool_choice names {shown(tool_choice.name)}: expected one of the tools {shown(names)}"
            )
        return named
    if tool_choice == "required":
        if not tools:
            raise ArgumentError("tool_choice is 'required', and there are no tools: pass some")
        return list(tools)
    return None


def has_strict(tools: Sequence[Tool], tool_choice: ToolChoice) -> bool:
    """Whether the model may call tools of which one is strict."""
    return tool_choice == "auto" and any(tool.strict for tool in tools)


def as_strict_as(tool: Tool) -> Tool:
    """The tool, of any arguments unless it is strict."""
    return tool if tool.strict else replace(tool, parameters=_ANY_OBJECT)


def calls(
    frames: Sequence[Frame], *, separator: str, parallel: bool, unless_begins: str | None = None
) -> GuidedDecodingParams:
    """A text of calls; see ``of_rules``."""
    rules = []
    for number, frame in enumerate(frames):
        rules.append(f"call_{number}: {quoted(frame.begin)} arguments_{number} {quoted(frame.end)}")
        rules.append(f"arguments_{number}: {json_rule(frame.schema)}")
    return of_rules(rules, len(frames), separator=separator, parallel=parallel, unless_begins=unless_begins)


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
    """A text of calls with ``separator`` between them, or if not ``parallel``, of one, and ``end``.

    ``rules`` has the rules ``call_0`` … of a call of each function, and of the first call, if it is written otherwise,
    the rule that ``first`` names. With ``unless_begins``, a text that does not begin with this regular expression is
    right as well. The first literal of the first call must then match it, as what is read literal by literal would be
    taken for the beginning of such a text.
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
    """Any text, which behind ``triggers[n]`` goes on by the rule ``tag_n`` of ``rules``."""
    tags = " | ".join(f"before_{number} tag_{number}" for number in range(len(triggers)))
    lines = [f"start: ({tags})* FREE", "FREE: /(?s:.*)/", *rules]
    lines += [f"before_{number}[lazy]: /(?s:.*)/ {quoted(trigger)}" for number, trigger in enumerate(triggers)]
    return GuidedDecodingParams(grammar="\n".join(lines))


def tagged(frames: Sequence[Frame], *, trigger: str) -> GuidedDecodingParams:
    """Any text, which is one of ``frames`` from where it comes to ``trigger``, with which they all begin."""
    structures = [{"begin": frame.begin, "schema": dict(frame.schema), "end": frame.end} for frame in frames]
    tags = {"type": STRUCTURAL_TAG, "structures": structures, "triggers": [trigger]}
    return GuidedDecodingParams(structural_tag=tags)


def quoted(text: str) -> str:
    """``text`` as a grammar writes it."""
    return json.dumps(text, ensure_ascii=False)


def json_rule(schema: Mapping[str, Any]) -> str:
    """What a grammar writes for JSON of ``schema``. Raises ArgumentError if JSON cannot express the schema."""
    try:
        return f"%json {json.dumps(dict(schema), ensure_ascii=False, allow_nan=False)}"
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(f"parameters of a tool are {shown(schema)}: expected what JSON can express") from error


def refuse_required(tools: Sequence[Tool], tool_choice: ToolChoice, *, parser: str, marker: str) -> None:
    """Raise ArgumentError if a call must be made, for a parser whose calls begin with a special token."""
    if required(tools, tool_choice) is not None:
        raise ArgumentError(
            f"tool_choice of {shown(tool_choice)} is not supported with tool parser {parser}: its calls begin with the "
            f"special token {marker}, which no grammar allows: use 'auto'"
        )
