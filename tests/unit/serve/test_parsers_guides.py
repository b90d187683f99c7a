"""Guides of tool parsers, compiled by llguidance: which texts they allow."""

import json
import random
from dataclasses import replace
from functools import cache

import jsonschema
import pytest

from tests.models import EOS, EOS_ID, PAD_ID, tiny_tokenizer
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


SPECIAL = (
    *("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>"),
    *("<|tool_call|>", "<|/tool_call|>", "<|action_start|>", "<|plugin|>", "<|action_end|>", "<|START_ACTION|>"),
    *("<|END_ACTION|>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
    *("<|tool_call_end|>", "<|tool_call_argument_begin|>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    *("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<|call|>"),
)
"""Tokens that mark calls in published tokenizers."""


@cache
def made(*, has_special=True):
    tokenizer, manifest = tiny_tokenizer(), fake_manifest()
    if has_special:
        # The end token's name ends messages in some formats: the tokenizer gets another name for it.
        tokenizer = type(tokenizer).from_str(tokenizer.to_str().replace(EOS, "<|eos|>"))
        tokenizer.add_special_tokens(list(SPECIAL))
    ends = (EOS_ID, PAD_ID, *([tokenizer.token_to_id("<|call|>")] if has_special else []))
    model = replace(manifest.model, vocab_size=tokenizer.get_vocab_size(), eos_token_ids=ends)
    limits = replace(manifest.limits, max_draft_len=4)
    return tokenizer, Grammars(replace(manifest, model=model, limits=limits), Tokenizer(tokenizer, {}))


def allows(guide: GuidedDecodingParams | None, text: str) -> bool:
    """Whether a guide allows all of a text, and that it ends there, whether or not the markers are special tokens."""
    assert guide is not None
    found = {_allows(guide, text, has_special) for has_special in (True, False)}
    assert len(found) == 1
    return found.pop()


def _allows(guide: GuidedDecodingParams, text: str, has_special: bool) -> bool:
    tokenizer, grammars = made(has_special=has_special)
    matcher, size = _testing.start_grammar(grammars.compile(guide.source)), tokenizer.get_vocab_size()
    for token in tokenizer.encode(text).ids:
        if token not in matcher.allowed(size):
            return False
        matcher.accept([token])
    return EOS_ID in matcher.allowed(size)


def guide_of(name: str, *, tools=(WEATHER, TIME), choice="required", parallel=True):
    return find_tool_parser(name).guide(list(tools), choice, parallel=parallel)


PARIS, ROME, WRONG, NOW = {"city": "Paris"}, {"city": "Rome", "days": 3}, {"city": "Rome", "days": "x"}, {}


def _json_call(begin, name, between, arguments, end):
    return f"{begin}{name}{between}{json.dumps(arguments)}{end}"


def _call_of(begin, between, end):
    return lambda name, arguments: _json_call(begin, name, between, arguments, end)


def _glm(name, arguments):
    pairs = [f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in arguments.items()]
    return f"<tool_call>{name}\n{''.join(pairs)}</tool_call>"


def _python(name, arguments):
    return f"{name}({', '.join(f'{key}={json.dumps(value)}' for key, value in arguments.items())})"


OBJECT = _call_of('{"name": "', '", "arguments": ', "}")
CALLS = {
    "cohere_command3": _call_of('{"tool_call_id": "0", "tool_name": "', '", "parameters": ', "}"),
    "deepseek_v3": _call_of("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>"),
    "deepseek_v31": _call_of("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    "glm45": _glm,
    "glm47": lambda name, arguments: _glm(name, arguments).replace("\n", ""),
    "granite": OBJECT,
    "hermes": _call_of('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>"),
    "internlm": _call_of('<|action_start|><|plugin|>\n{"name": "', '", "parameters": ', "}<|action_end|>"),
    "kimi_k2": _call_of("<|tool_call_begin|>functions.", ":0<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    "llama3_json": _call_of('{"name": "', '", "parameters": ', "}"),
    "mistral": _call_of("[TOOL_CALLS]", "[ARGS]", ""),
    "olmo3": _python,
    "openai": _call_of("<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", ""),
    "phi4_mini_json": OBJECT,
    "pythonic": _python,
    "qwen3_coder": lambda name, arguments: (
        f"<tool_call>\n<function={name}>\n"
        + "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
        + "</function>\n</tool_call>"
    ),
}
AROUND = {
    "cohere_command3": ("<|START_ACTION|>[\n    ", ",\n    ", "\n]<|END_ACTION|>"),
    "deepseek_v3": ("<｜tool▁calls▁begin｜>", "\n", "<｜tool▁calls▁end｜>"),
    "deepseek_v31": ("<｜tool▁calls▁begin｜>", "", "<｜tool▁calls▁end｜>"),
    "granite": ("<|tool_call|>[", ", ", "]"),
    "kimi_k2": ("<|tool_calls_section_begin|>", "", "<|tool_calls_section_end|>"),
    "llama3_json": ("", "; ", ""),
    "mistral": ("", "", ""),
    "olmo3": ("<function_calls>\n", "\n", "\n</function_calls>"),
    "openai": ("", "<|end|><|start|>assistant", ""),
    "phi4_mini_json": ("<|tool_call|>[", ", ", "]<|/tool_call|>"),
    "pythonic": ("[", ", ", "]"),
}
"""What stands before, between and after calls, for parsers that want more than line ends between them."""
assert set(CALLS) == set(TOOL_PARSERS)


def text_of(name, *calls):
    """A text of calls, each a function's name and its arguments."""
    begin, separator, end = AROUND.get(name, ("", "\n", ""))
    return begin + separator.join(CALLS[name](*call) for call in calls) + end


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
    twice = text_of(name, ("get_weather", ROME), ("get_weather", ROME))
    assert parsed(twice, name, tools=[WEATHER]) == [["get_weather", '{"city": "Rome", "days": 3}']] * 2


@pytest.mark.parametrize("name", CALLS)
def test_one_call_is_made_unless_parallel(name):
    guide = guide_of(name, parallel=False)
    assert allows(guide, text_of(name, ("get_time", NOW)))
    assert not allows(guide, text_of(name, ("get_time", NOW), ("get_time", NOW)))


@pytest.mark.parametrize("name", CALLS)
def test_a_named_function_is_called_once(name):
    guide = guide_of(name, choice=NamedFunction("get_weather"))
    assert allows(guide, text_of(name, ("get_weather", PARIS)))
    assert not allows(guide, text_of(name, ("get_weather", PARIS), ("get_weather", PARIS)))
    assert not allows(guide, text_of(name, ("get_time", NOW)))


@pytest.mark.parametrize("name", CALLS)
def test_strict_tools_are_called_by_their_schemas_in_free_text(name):
    guide = guide_of(name, tools=[STRICT, ANY], choice="auto")
    free = "<|channel|>final<|message|>" if name == "openai" else ""
    assert allows(guide, f"{free}It rains.\n{{<[")
    assert allows(guide, free)
    assert allows(guide, f'{free}{{"rain": 3}}')
    assert allows(guide, text_of(name, ("get_weather", ROME)))
    assert not allows(guide, text_of(name, ("get_weather", WRONG)))
    assert allows(guide, text_of(name, ("get_any", {"zone": 3, "b": 4})))  # get_any is not strict


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
        matcher = _testing.start_grammar(grammars.compile(guide.source))
        tokens = tokenizer.encode("<|channel|>commentary to=" if name == "openai" else "").ids  # without thoughts
        matcher.accept(tokens)
        while len(tokens) < 300:
            allowed = matcher.allowed(size)
            if EOS_ID in allowed:
                num_ended += 1
                break
            written = [token for token in allowed if not tokenizer.decode([token]).isspace()]
            tokens.append(draw.choice(written if written and draw.random() < 0.5 else allowed))
            matcher.accept(tokens[-1:])
        else:
            continue
        text = tokenizer.decode(tokens, skip_special_tokens=False)
        found = parsed(text, name, tools=[Tool("get_it", DRAWN)])
        assert found
        for function, arguments in found:
            assert function == "get_it"
            jsonschema.validate(json.loads(arguments), DRAWN)
    assert num_ended > 5  # a format that ends with a line break, which is rarely drawn, ends rarely


@pytest.mark.parametrize("name", sorted(TOOL_PARSERS))
def test_other_texts_are_free(name):
    assert guide_of(name, choice="auto") is None
    assert guide_of(name, choice="none", tools=[STRICT]) is None
    assert guide_of(name, choice="auto", tools=[]) is None


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


UNENFORCED = {
    "type": "object",
    "properties": {"tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}},
    "required": ["tags"],
    "not": {"required": ["other"]},
}


@pytest.mark.parametrize("name", ["hermes", "llama3_json", "pythonic", "qwen3_coder"])
def test_what_no_grammar_enforces_is_left_out_unless_a_tool_is_strict(name):
    tools = [Tool("get_tags", UNENFORCED), WEATHER]
    for choice in ("required", NamedFunction("get_tags")):
        assert allows(guide_of(name, tools=tools, choice=choice), text_of(name, ("get_tags", {"tags": []})))
    strict = [replace(tools[0], strict=True), WEATHER]
    with pytest.raises(ArgumentError, match="uniqueItems"):
        allows(guide_of(name, tools=strict), "")


@pytest.mark.parametrize("choice", ["required", NamedFunction("f")])
def test_forced_calls_have_declared_arguments_on_one_line(choice) -> None:
    def forced(parameters: dict, arguments: str) -> bool:
        guide = find_tool_parser("hermes").guide([Tool("f", parameters)], choice, parallel=False)
        return allows(guide, f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>')

    declared = {"type": "object", "properties": {"city": {"type": "string"}}}
    assert forced(declared, '{"city": "Oslo"}')
    assert forced(declared, "{}")
    assert not forced(declared, '{"town": "Oslo"}')
    assert not forced(declared, "{\n}")
    for others in ({"additionalProperties": True}, {"patternProperties": {"^t": {}}}):
        assert forced({**declared, **others}, '{"town": "Oslo"}')
    assert forced({"type": "object"}, '{"town": "Oslo"}')
