"""Makes the text for the compiler of grammars from a client's request: checked, and with additional bounds."""

import importlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trtllm_lite.errors import ArgumentError, LimitError, shown
from trtllm_lite.runtime.session.grammar_markers import with_markers
from trtllm_lite.runtime.session.guided_decoding import STRUCTURAL_TAG, GrammarSource

MAX_SCHEMA_DEPTH = 100
"""Deepest nesting of brackets in a JSON schema; some thousands would overflow a stack."""
MAX_STRUCTURES = 1024
"""The maximum number of structures of structural tags; each takes about 20 of the 65,525 symbols of a grammar."""
WHITE_SPACE = r"[ \t]{0,4}\r?\n[ \t]{0,80}|[ \t]{1,8}"
"""White space allowed between the tokens of JSON: a line break and an indentation, or some blanks.

JSON allows any amount, and a model that has begun to write blanks can go on until its ``max_tokens``.
"""
SCHEMA_OPTIONS = "x-guidance"
"""The key of llguidance's options, at the top of a schema."""
# Values of ``format`` that llguidance enforces; JSON Schema calls all others annotations.
KNOWN_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown")
)
# Keywords of JSON Schema that hold schemas: first those with one schema or a list, then those with schemas by name.
_HOLD_SCHEMAS = frozenset(
    (
        *("items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"),
        *("additionalProperties", "unevaluatedProperties", "propertyNames"),
        *("allOf", "anyOf", "oneOf", "not", "if", "then", "else"),
    )
)
_HOLD_NAMED_SCHEMAS = frozenset(("properties", "patternProperties", "dependentSchemas", "$defs", "definitions"))
# Parts of llguidance's Lark: strings, comments, regular expressions; then a schema, or the name of a token.
_LITERAL = r'"(?:\\.|[^"\\\n])*"|(?://|#)[^\n]*|/(?:\\.|[^/\\\n])+/'
_LITERALS = re.compile(_LITERAL)
_LITERAL_OR_SCHEMA = re.compile(rf"{_LITERAL}|%json\s*")
_TOKEN_NAME = re.compile(r"<[^<>\s]+>")


@dataclass(frozen=True)
class CompilerInput:
    """The arguments of ``_core.GrammarCompiler.compile``."""

    kind: str
    text: str
    names_tokens: bool = False


def compiler_input(source: GrammarSource, special_ids: Mapping[str, int], end_ids: Collection[int]) -> CompilerInput:
    """The compiler's input for the grammar ``source``. For the ids of tokens see ``with_markers``.

    Raises ArgumentError for an invalid grammar, LimitError for one that exceeds a limit of this module.
    """
    if source.kind == "json_schema":
        return CompilerInput(source.kind, _dumped(_bounded(_parsed(source.text))))
    if source.kind == STRUCTURAL_TAG:
        return CompilerInput("lark", _with_bounded_schemas(_lark_of_tags(_parsed(source.text))))
    if source.kind == "lark":
        _check_names_no_token(source)
        text = _with_bounded_schemas(with_markers(source, special_ids, end_ids))
        return CompilerInput(source.kind, text, bool(source.markers) and _named_token(text) is not None)
    return CompilerInput(source.kind, source.text)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:  # the depth that overflows the stack depends on the caller
        raise LimitError(f"it has more than {MAX_SCHEMA_DEPTH} brackets inside each other: flatten it") from error


def llguidance() -> Any:
    """Import the library. Raises ArgumentError if it is not installed."""
    try:
        return importlib.import_module("llguidance")
    except ImportError as error:
        raise ArgumentError(
            "guided_decoding needs llguidance, which is not installed: pip install 'trtllm_lite[guided]'"
        ) from error


def _check_names_no_token(source: GrammarSource) -> None:
    """Raise ArgumentError if a Lark grammar names tokens, as in ``<|user|>`` or ``<[3]>``, not only text."""
    named = _named_token(source.text)
    if named is not None:
        raise ArgumentError(
            f"it names the token {shown(named)}: expected text in quotes, as special tokens are no part of what a "
            "grammar allows"
        )


def _named_token(lark: str) -> str | None:
    """The first token that a Lark grammar names, or None."""
    named = _TOKEN_NAME.search(_LITERALS.sub("", lark))
    return None if named is None else named[0]


def _with_bounded_schemas(lark: str) -> str:
    """``lark`` with bounds added to the JSON schemas inside it."""
    pieces, at = [], 0
    while match := _LITERAL_OR_SCHEMA.search(lark, at):
        pieces.append(lark[at : match.end()])
        at = match.end()
        if not match[0].startswith("%json"):
            continue
        try:
            schema, end = json.JSONDecoder().raw_decode(lark, at)
            pieces.append(_dumped(_bounded({} if schema is True else schema)))
        except (ValueError, RecursionError) as error:
            raise ArgumentError(f"expected JSON after %json, found {shown(lark[at : at + 80])}") from error
        at = end
    return "".join((*pieces, lark[at:]))


def _dumped(schema: Any) -> str:
    return json.dumps(schema, allow_nan=False)  # in ASCII, which can also write lone surrogates


def _bounded(schema: Any) -> Any:
    """``schema`` with bounded white space, and without formats that are not enforced."""
    if not isinstance(schema, dict):
        return schema
    _check_depth(schema)
    for inner in _schemas_of(schema):
        if isinstance(inner.get("format"), str) and inner["format"] not in KNOWN_FORMATS:
            del inner["format"]
    options = schema.get(SCHEMA_OPTIONS, {})
    if isinstance(options, dict) and options.get("whitespace_flexible", True) is True:
        schema[SCHEMA_OPTIONS] = {"whitespace_pattern": WHITE_SPACE, **options}
    return schema


def _check_depth(schema: Any) -> None:
    level, depth = [schema], 0
    while level := [value for value in level if isinstance(value, dict | list)]:
        depth += 1
        level = [inner for value in level for inner in (value.values() if isinstance(value, dict) else value)]
    if depth > MAX_SCHEMA_DEPTH:
        raise LimitError(
            f"its JSON schema has {depth} brackets inside each other, which exceeds {MAX_SCHEMA_DEPTH}: flatten it"
        )


def _schemas_of(schema: Any) -> Iterator[dict[str, Any]]:
    """``schema`` and all schemas inside it, except ``true`` and ``false``."""
    if not isinstance(schema, dict):
        return
    yield schema
    for key, value in schema.items():
        if key in _HOLD_SCHEMAS:
            inner = value if isinstance(value, list) else [value]
        elif key in _HOLD_NAMED_SCHEMAS and isinstance(value, dict):
            inner = list(value.values())
        else:
            continue
        for one in inner:
            yield from _schemas_of(one)


def _lark_of_tags(tags: Mapping[str, Any]) -> str:
    """The grammar of free text that contains the structures of ``tags``; see GuidedDecodingParams."""
    triggers, structures = tags.get("triggers", []), tags.get("structures", [])
    if tags.get("type") != STRUCTURAL_TAG or not _are_texts(triggers) or not _are_structures(structures):
        raise ArgumentError(
            f'found {shown(dict(tags))}: expected {{"type": "structural_tag", "structures": [{{"begin": "…", "schema": '
            '{…}, "end": "…"}, …], "triggers": ["…", …]}'
        )
    if len(structures) > MAX_STRUCTURES:
        raise LimitError(f"it has {len(structures):,} structures, which exceeds {MAX_STRUCTURES:,}: pass fewer")
    struct_tag = llguidance().StructTag
    made = []
    for structure in structures:
        begin, schema, end = structure["begin"], structure["schema"], structure["end"]
        trigger = next((trigger for trigger in triggers if begin.startswith(trigger)), None)
        if trigger is None:
            raise ArgumentError(f"the begin {shown(begin)} starts with no trigger: add one that it starts with")
        made.append(struct_tag(trigger=trigger, begin=begin, grammar=schema, end=end))
    # With assume_special, a trigger in angle brackets would be taken for a special token's name.
    return str(struct_tag.to_grammar(made, assume_special=False))


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and bool(values) and all(isinstance(value, str) and value for value in values)


def _are_structures(values: Any) -> bool:
    kinds = {"begin": str, "schema": dict, "end": str}
    return (
        isinstance(values, list)
        and bool(values)
        and all(
            isinstance(value, dict) and all(isinstance(value.get(name), kind) for name, kind in kinds.items())
            for value in values
        )
    )
