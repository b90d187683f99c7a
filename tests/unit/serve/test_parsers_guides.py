"""Guides of tool parsers, compiled by llguidance: which texts they allow."""

import json
import random
from dataclasses import replace
from functools import cache

import jsonschema
import pytest

from tests.models import EOS_ID, PAD_ID, tiny_tokenizer
from tests.unit.runtime.doubles import fake_manifest
from trtllm_lite import GuidedDecodingParams, _testing
from trtllm_lite.errors import ArgumentError
from trtllm_lite.runtime.session.grammars import Grammars
from trtllm_lite.runtime.text.tokenizer import Tokenizer
from trtllm_lite.serve.parsers import TOOL_PARSERS, NamedFunction, Tool, find_tool_parser

from .parsing import parsed

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER, TIME, ANY = Tool("get_weather", SCHEMA), Tool("get_time"), Tool("get_any", {"type": "object"})
STRICT = replace(WEATHER, strict=True)


@cache
def made():
    tokenizer, manifest = tiny_tokenizer(), fake_manifest()
    model = replace(manifest.model, vocab_size=tokenizer.get_vocab_size(), eos_token_ids=(EOS_ID, PAD_ID))
    return tokenizer, Grammars(replace(manifest, model=model), Tokenizer(tokenizer, {}))


def allows(guide: GuidedDecodingParams | None, text: str) -> bool:
    """Whether a guide allows all of a text, and that it ends there."""
    assert guide is not None
    tokenizer, grammars = made()
    matcher, size = _testing.start_grammar(grammars.compile(guide.source)), tokenizer.get_vocab_size()
    for token in tokenizer.encode(text).ids:
        if token not in matcher.allowed(size):
            return False
        matcher.accept([token])
    return EOS_ID in matcher.allowed(size)


def guide_of(name: str, *, tools=(WEATHER, TIME), choice="required", parallel=True):
    return find_tool_parser(name).guide(list(tools), choice, parallel=parallel)


PARIS, ROME, WRONG, NOW = {"city": "Paris"}, {"city": "Rome", "days": 3}, {"city": "Rome", "days": "x"}, {}
CALLS = {
    "hermes": lambda name, arguments: (
        f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'
    ),
    "llama3_json": lambda name, arguments: f'{{"name": "{name}", "parameters": {json.dumps(arguments)}}}',
    "pythonic": lambda name, arguments: (
        f"{name}({', '.join(f'{key}={json.dumps(value)}' for key, value in arguments.items())})"
    ),
    "qwen3_coder": lambda name, arguments: (
        f"<tool_call>\n<function={name}>\n"
        + "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
        + "</function>\n</tool_call>"
    ),
}
SEPARATORS = {"hermes": "\n", "llama3_json": "; ", "pythonic": ", ", "qwen3_coder": "\n"}
UNGUIDED = sorted(set(TOOL_PARSERS) - set(CALLS))


def text_of(name, *calls):
    """A text of calls, each a function's name and its arguments."""
    text = SEPARATORS[name].join(CALLS[name](*call) for call in calls)
    return f"[{text}]" if name == "pythonic" else text


@pytest.mark.parametrize("name", CALLS)
def test_required_calls_follow_the_schema(name):
    guide = guide_of(name)
    weather = text_of(name, ("get_weather", ROME))
    assert allows(guide, weather)
    assert allows(guide, text_of(name, ("get_weather", PARIS)))
    assert allows(guide, text_of(name, ("get_time", NOW)))
    assert allows(guide, text_of(name, ("get_weather", ROME), ("get_time", NOW)))
    assert not allows(guide, text_of(name, ("get_weather", WRONG)))
    assert not allows(guide, text_of(name, ("get_weather", {"days": 3})))
    assert not allows(guide, text_of(name, ("get_news", NOW)))
    assert not allows(guide, "It rains.")
    assert not allows(guide, f"{weather} It rains.")
    assert not allows(guide, "")
    expected = [["get_weather", '{"city": "Rome", "days": 3}']]
    assert parsed(weather, name, tools=[WEATHER]) == expected


@pytest.mark.parametrize("name", CALLS)
def test_one_call_is_made_unless_parallel(name):
    guide = guide_of(name, parallel=False)
    assert allows(guide, text_of(name, ("get_time", NOW)))
    assert not allows(guide, text_of(name, ("get_time", NOW), ("get_time", NOW)))


@pytest.mark.parametrize("name", CALLS)
def test_a_named_function_is_called(name):
    guide = guide_of(name, choice=NamedFunction("get_weather"))
    assert allows(guide, text_of(name, ("get_weather", PARIS)))
    assert not allows(guide, text_of(name, ("get_time", NOW)))


@pytest.mark.parametrize("name", CALLS)
def test_strict_tools_are_called_by_their_schemas_in_free_text(name):
    guide = guide_of(name, tools=[STRICT, ANY], choice="auto")
    assert allows(guide, "It rains.\n{<[")
    assert allows(guide, "")
    assert allows(guide, '{"rain": 3}')
    assert allows(guide, text_of(name, ("get_weather", ROME)))
    assert not allows(guide, text_of(name, ("get_weather", WRONG)))
    assert allows(guide, text_of(name, ("get_any", {"zone": 3, "b": 4})))  # which is not strict


def test_optional_arguments_of_python_have_commas_between():
    properties = {name: {"type": "integer"} for name in "abc"}
    guide = guide_of("pythonic", tools=[Tool("f", {"type": "object", "properties": properties, "required": ["b"]})])
    for arguments in ("b=1", "a=1, b=1", "b=1, c=1", "a=1, b=1, c=1"):
        assert allows(guide, f"[f({arguments})]")
    for arguments in ("", "a=1", "a=1, c=1", ", b=1", "b=1,", "a=1 b=1", "b=1, a=1"):
        assert not allows(guide, f"[f({arguments})]")


def test_values_in_tags_follow_their_schemas():
    properties = {
        "unit": {"type": "string", "enum": ["c", "f"]},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "days": {"$ref": "#/$defs/days"},
        "text": {},
    }
    definitions = {"days": {"type": "array", "items": {"type": "integer"}}}
    schema = {"type": "object", "properties": properties, "$defs": definitions}
    guide = guide_of("qwen3_coder", tools=[Tool("f", schema)])

    def call(**arguments):
        return text_of("qwen3_coder", ("f", arguments))

    assert allows(guide, call())
    assert allows(guide, call(unit="c", note="null", days="[1, 2]", text="1 < 2\n<parameter=x>\n"))
    assert not allows(guide, call(unit="k"))
    assert not allows(guide, call(days='["1"]'))
    assert not allows(guide, call(text="</parameter>"))


DRAWN = {
    "type": "object",
    "properties": {
        "unit": {"type": "string", "enum": ["c", "f"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 99},
        "flags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["days"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("name", CALLS)
def test_any_text_that_is_forced_is_read_as_calls(name):
    """Tokens are drawn among those that the guide allows, up to the text's end."""
    tokenizer, grammars = made()
    guide, size, draw = guide_of(name, tools=[Tool("get_it", DRAWN)]), tokenizer.get_vocab_size(), random.Random(0)
    num_ended = 0
    for _ in range(20):
        matcher, tokens = _testing.start_grammar(grammars.compile(guide.source)), []
        while len(tokens) < 300:
            allowed = matcher.allowed(size)
            if EOS_ID in allowed:
                num_ended += 1
                break
            written = [token for token in allowed if not tokenizer.decode([token]).isspace()]
            tokens.append(draw.choice(written or allowed))
            matcher.accept(tokens[-1:])
        else:
            continue
        found = parsed(tokenizer.decode(tokens), name, tools=[Tool("get_it", DRAWN)])
        assert found
        for function, arguments in found:
            assert function == "get_it"
            jsonschema.validate(json.loads(arguments), DRAWN)
    assert num_ended > 10


@pytest.mark.parametrize("name", sorted(TOOL_PARSERS))
def test_other_texts_are_free(name):
    assert guide_of(name, choice="auto") is None
    assert guide_of(name, choice="none", tools=[STRICT]) is None
    assert guide_of(name, choice="auto", tools=[]) is None


@pytest.mark.parametrize("name", UNGUIDED)
def test_calls_that_begin_with_a_special_token_cannot_be_required(name):
    for choice in ("required", NamedFunction("get_time")):
        with pytest.raises(ArgumentError, match=rf"tool_choice .* is not supported with tool parser {name}: its calls"):
            guide_of(name, choice=choice)
    assert guide_of(name, choice="auto", tools=[STRICT]) is None


@pytest.mark.parametrize("name", sorted(TOOL_PARSERS))
def test_choices_of_no_tool_are_refused(name):
    with pytest.raises(ArgumentError, match="tool_choice is 'required', and there are no tools"):
        guide_of(name, tools=[])
    with pytest.raises(ArgumentError, match=r"tool_choice names 'get_news': expected one of the tools \['get_weather'"):
        guide_of(name, choice=NamedFunction("get_news"))


def test_names_are_quoted():
    guide = guide_of("hermes", tools=[Tool('a"\\\n</tool_call>é')])
    assert allows(guide, CALLS["hermes"]('a\\"\\\\\\n</tool_call>\\u00e9', {}))


def test_schemas_that_are_no_json_are_refused():
    with pytest.raises(ArgumentError, match=r"parameters of a tool are .*: expected what JSON can express"):
        guide_of("hermes", tools=[Tool("f", {"a": object})])
