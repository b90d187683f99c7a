"""Guided decoding parameters that are hard to compile: deep, wide, ambiguous, exponential, or damaged grammars."""

import json
import random
from typing import Any

from tests.fuzz.damage import damaged_text
from tests.fuzz.documents import mutated

Fields = dict[str, Any]  # fields of GuidedDecodingParams, and their values

_LENGTHS = (2, 7, 30, 90, 300, 1000, 4000)
_SCHEMA: Any = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 40, "pattern": "^[A-Z][a-z]*$"},
        "when": {"type": "string", "format": "date-time"},
        "size": {"type": "number", "minimum": -3.5, "multipleOf": 0.25},
        "tags": {"type": "array", "items": {"enum": ["a", 1, None]}, "minItems": 1, "maxItems": 9},
        "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        "rest": {"$ref": "#/$defs/rest"},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
    "$defs": {"rest": {"allOf": [{"type": "object"}, {"patternProperties": {"^x": {"type": "integer"}}}]}},
}
_LARK = """start: head (item ",")* tail?
head: "<" NAME ">" | %json {"type": "array", "items": {"type": "integer"}}
item[lazy]: /[^,]*/ "!" | NUMBER ~ 2..5
tail: start | "end"
NAME: /[a-z]{1,20}/ & ~/(if|else)/
NUMBER: /[0-9]+(\\.[0-9]+)?/
%ignore /[ \\t]+/
"""
_REGEXES = (
    "({a}|{b}){{{n}}}",
    "(.*{a}.{{{n}}})&(.*{b}.{{{m}}})",
    "(?s:.*){a}(?s:.{{{n}}}){b}(?s:.*)",
    "({a}{{1,{n}}}){{1,{m}}}",
    "(({a}|{a}{a})*{b}){{{n}}}",
    "[^{a}]{{0,{n}}}({b}?){{{m}}}",
    "({a}?){{{n}}}{a}{{{n}}}",
)


def hostile_grammar(rng: random.Random) -> Fields:
    """A random hostile grammar."""
    makers = (_schema_chain, _nested_schema, _chain, _wide, _ambiguous, _regex, _tags, _odd_text, _damaged, _damaged)
    return rng.choice(makers)(rng)


def _schema_chain(rng: random.Random) -> Fields:
    length, keyword = rng.choice(_LENGTHS), rng.choice(("properties", "items", "allOf", "anyOf", "oneOf", "$ref"))
    schemas: dict[str, Any] = {f"s{length}": {"type": rng.choice(("integer", "string", "object"))}}
    for i in range(length):
        other = {"$ref": f"#/$defs/s{rng.randint(i + 1, min(length, i + 3))}"}
        schemas[f"s{i}"] = {
            "properties": {"type": "object", "properties": {"x": other, "y": other}},
            "items": {"type": "array", "items": other},
            "$ref": other,
        }.get(keyword, {keyword: [other, {"$ref": f"#/$defs/s{length}"}]})
    return {"json": {"$ref": "#/$defs/s0", "$defs": schemas}}


def _nested_schema(rng: random.Random) -> Fields:
    schema: Any = {"type": "integer"}
    for _ in range(rng.choice((5, 30, 90, 150, 400))):
        schema = rng.choice(
            ({"items": schema}, {"properties": {"x": schema}}, {"anyOf": [schema]}, {"allOf": [schema, {}]})
        )
    return {"json": json.dumps(schema)}


def _chain(rng: random.Random) -> Fields:
    length, name = rng.choice(_LENGTHS), rng.choice(("r", "T"))
    lines = [f"start: {name}0"]
    for i in range(length):
        following = f"{name}{rng.randint(i + 1, min(length, i + 4))}"
        lines.append(f"{name}{i}: " + rng.choice((f'"a" {following}', f'{following} | "b"', f'({following} "c")?')))
    return {"grammar": "\n".join([*lines, f'{name}{length}: "d"'])}


def _wide(rng: random.Random) -> Fields:
    number = rng.choice((*_LENGTHS, 16_000))
    words = [f"{rng.randrange(1 << 30):x} {i}" for i in range(number)]
    rules = "\n".join(f'r{i}: "{word}" r{rng.randrange(number)}?' for i, word in enumerate(words))
    return rng.choice(
        (
            {"choice": words},
            {"json": {"enum": words}},
            {"json": {"type": "object", "properties": {word: {"type": "string"} for word in words}}},
            {"grammar": "start: (" + " | ".join(f"r{i}" for i in range(number)) + ")*\n" + rules},
        )
    )


def _ambiguous(rng: random.Random) -> Fields:
    names = ["s", "t", "u", "v"][: rng.randint(1, 4)]
    parts = [*names, *names, '"a"', '"b"', "/[ab]/", "/[a-z]*/"]

    def alternative() -> str:
        return " ".join(rng.choice(parts) + rng.choice(("", "", "", "?", "*", "+")) for _ in range(rng.randint(0, 4)))

    rules = [f"{name}: " + " | ".join(['"a"', *(alternative() for _ in range(rng.randint(1, 5)))]) for name in names]
    return {"grammar": "\n".join(["start: s", *rules])}


def _regex(rng: random.Random) -> Fields:
    made = ""
    for _ in range(rng.choice((1, 1, 2, 40))):
        a, b = rng.sample(("a", "b", "[a-m]", ".", "ü", "\\d", "(x|yz)", "[^q]"), 2)
        made += rng.choice(_REGEXES).format(a=a, b=b, n=rng.choice((2, 20, 300, 30_000)), m=rng.choice((1, 17, 999)))
    return {rng.choice(("regex", "regex", "grammar")): made} if rng.random() < 0.7 else {"json": {"pattern": made}}


def _tags(rng: random.Random) -> Fields:
    number = rng.choice((1, 3, 40, 300, 1000, 3000))
    schema = rng.choice(({}, _SCHEMA, {"type": "object"}))
    structures = [{"begin": f"<f={i}>", "schema": schema, "end": rng.choice(("</f>", ""))} for i in range(number)]
    return {"structural_tag": {"type": "structural_tag", "triggers": ["<f", "<"], "structures": structures}}


def _odd_text(rng: random.Random) -> Fields:
    text = "".join(rng.choice(("\ud800", "\udfff", "\0", "\x7f", "\U0010ffff", "\u2028", "a")) for _ in range(4))
    return rng.choice(
        (
            {"json": {"const": text}},
            {"json": json.dumps({"type": "string", "pattern": text})},
            {"regex": text},
            {"choice": [text, "b"]},
            {"grammar": f"start: {json.dumps(text)} | %json " + json.dumps({"enum": [text]})},
        )
    )


def _damaged(rng: random.Random) -> Fields:
    if rng.random() < 0.5:
        return {"json": mutated(rng, _SCHEMA)}
    kind, text = rng.choice(
        (("grammar", _LARK), ("json", json.dumps(_SCHEMA)), ("regex", "(a|b[c-e]{2,5})*(?i:f)\\w+"))
    )
    return {kind: damaged_text(rng, text.encode()).decode(errors="replace")}
