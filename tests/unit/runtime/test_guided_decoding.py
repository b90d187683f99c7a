"""Grammars: masks against an independent regular expression engine, and what is refused."""

import random
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import regex
import tokenizers
from tokenizers import AddedToken, decoders, models

from tests.models import BOS_ID, EOS_ID, PAD_ID, tiny_tokenizer
from trtllm_lite import GuidedDecodingParams, SamplingParams, _testing
from trtllm_lite.errors import ArgumentError, LimitError, TrtllmLiteError
from trtllm_lite.runtime.core import core
from trtllm_lite.runtime.session import grammars
from trtllm_lite.runtime.session.grammars import Grammars
from trtllm_lite.runtime.text.tokenizer import Tokenizer

from .doubles import fake_manifest

SPECIAL_IDS = {0, 1, 2, 3}
PATTERNS = (
    "[0-9]{3}-[a-c]{2,4}",
    "(the|the quick|a) (brown )?fox",
    "(naïve|café|你好)+ = [0-9]+",
    "a*(b|ca)?d{2,}",
    '"[^"]*"',
    "<\\|user\\|>!",  # spells the name of a special token
)


def byte_level() -> tuple[tokenizers.Tokenizer, list[bytes]]:
    """The tiny tokenizer, and the bytes of its tokens, found by decoding with the library's own table of characters."""
    tokenizer = tiny_tokenizer()
    printed = {**{chr(b): b for b in (*range(33, 127), *range(161, 173), *range(174, 256))}}
    others = [b for b in range(256) if b not in printed.values()]
    printed |= {chr(256 + place): byte for place, byte in enumerate(others)}
    names = [tokenizer.id_to_token(token) for token in range(tokenizer.get_vocab_size())]
    texts = [b"" if token in SPECIAL_IDS else bytes(printed[c] for c in name) for token, name in enumerate(names)]
    return tokenizer, texts


def byte_fallback() -> tuple[tokenizers.Tokenizer, list[bytes]]:
    """A tokenizer like SentencePiece's: pieces with a mark for spaces, and tokens for all bytes."""
    pieces = ["the", "▁the", "▁", "▁fox", "quick", "a", "ca", "dd", "-", '"', "é", "▁=▁", "0", "12", "999", "user"]
    names = ["<unk>", "</s>", "<pad>", "<|user|>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    vocabulary = {name: token for token, name in enumerate(names)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names[:4]])
    single = [bytes([byte]) for byte in range(256)]
    return tokenizer, [b""] * 4 + single + [piece.replace("▁", " ").encode() for piece in pieces]


def grammars_of(tokenizer: tokenizers.Tokenizer) -> Grammars:
    return grammars_of_file(tokenizer.to_str())


@cache
def grammars_of_file(content: str) -> Grammars:
    """The grammars of a tokenizer.json; the tests share their process."""
    tokenizer = tokenizers.Tokenizer.from_str(content)
    manifest = fake_manifest()
    size = tokenizer.get_vocab_size() + 37  # tokens without a text, which pad the vocabulary as in models
    model = replace(manifest.model, vocab_size=size, eos_token_ids=(EOS_ID, PAD_ID))
    return Grammars(replace(manifest, model=model), Tokenizer(tokenizer, {}))


def matcher_of(made: Grammars, **guided):
    return _testing.start_grammar(made.compile(GuidedDecodingParams(**guided).source))


@pytest.mark.parametrize("kind", [byte_level, byte_fallback])
def test_a_token_is_allowed_if_the_text_can_go_on(kind):
    tokenizer, texts = kind()
    made = grammars_of(tokenizer)
    draw = random.Random(0)
    for pattern in PATTERNS:
        expression = regex.compile(pattern.encode())
        for _ in range(4):
            matcher, text = matcher_of(made, regex=pattern), b""
            for _ in range(12):
                expected = [t for t, piece in enumerate(texts) if piece and goes_on(expression, text + piece)]
                ends = [EOS_ID, PAD_ID] if expression.fullmatch(text) else []
                assert matcher.allowed(len(texts) + 37) == sorted(expected + ends), (pattern, text)
                if not expected:
                    break
                token = draw.choice(expected)
                matcher.accept([token])
                text += texts[token]


def goes_on(expression, text: bytes) -> bool:
    """Whether ``text`` is the start of a text of valid UTF-8 that matches."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":
            return False
    return expression.fullmatch(text, partial=True) is not None


def test_tokens_are_taken_back():
    made = grammars_of(tiny_tokenizer())
    matcher = matcher_of(made, grammar='start: "(" start ")" | /[a-z]{1,3}/')
    draw, masks, tokens = random.Random(1), [], []
    for _ in range(300):
        allowed = matcher.allowed(380)
        if len(masks) == len(tokens):
            masks.append(allowed)
        assert allowed == masks[-1]
        if tokens and (draw.random() < 0.4 or tokens[-1] in (EOS_ID, PAD_ID)):
            count = draw.randint(1, len(tokens))
            matcher.roll_back(count)
            del tokens[-count:], masks[-count:]
        else:
            tokens.append(draw.choice(allowed))
            matcher.accept(tokens[-1:])


def test_matchers_of_one_grammar_share_nothing():
    made = grammars_of(tiny_tokenizer())
    first, second = (matcher_of(made, choice=["the fox", "a dog"]) for _ in range(2))
    start = first.allowed(380)
    first.accept(start[:1])
    assert second.allowed(380) == start


def test_an_end_token_is_no_part_of_a_text_whatever_the_tokenizer_says():
    tokenizer = tokenizers.Tokenizer.from_str(tiny_tokenizer().to_str())
    tokenizer.add_tokens([AddedToken("</s>", special=False)])
    end = tokenizer.token_to_id("</s>")
    manifest = fake_manifest()
    model = replace(manifest.model, vocab_size=end + 1, eos_token_ids=(end,))
    made = Grammars(replace(manifest, model=model), Tokenizer(tokenizer, {}))
    assert end not in matcher_of(made, regex="[^a]{9}").allowed(end + 1)
    assert end in matcher_of(made, regex="b*").allowed(end + 1)


def test_special_tokens_are_no_part_of_any_text():
    tokenizer, texts = byte_level()
    made = grammars_of(tokenizer)
    for guided in ({"regex": r"(.|\n)*"}, {"grammar": 'start: (/[a-z]/ | "<|user|>" | "</s>")* // <|user|>'}):
        matcher = matcher_of(made, **guided)
        for token in ("fox", "<"):
            assert SPECIAL_IDS.isdisjoint(set(matcher.allowed(len(texts) + 37)) - {EOS_ID, PAD_ID})
            matcher.accept(tokenizer.encode(token).ids)


def test_the_latest_grammars_are_kept():
    made = grammars_of(tiny_tokenizer())
    first = made.compile(GuidedDecodingParams(regex="a").source)
    for number in range(grammars.MAX_KEPT):
        made.compile(GuidedDecodingParams(regex=f"b{number}").source)
    assert made.compile(GuidedDecodingParams(regex="a").source) is not first


def test_nesting_is_bounded():
    deep: dict = {"type": "integer"}
    for _ in range(100_000):
        deep = {"items": deep}
    with pytest.raises(ArgumentError, match=r"json of guided_decoding .*: expected what JSON can express"):
        GuidedDecodingParams(json=deep)
    with pytest.raises(ArgumentError, match=r"json of guided_decoding .*: expected JSON"):
        GuidedDecodingParams(json='{"items": ' * 100_000 + "{}" + "}" * 100_000)
    nested = '{"items": ' * 900 + "{}" + "}" * 900
    with pytest.raises(LimitError, match=r"json of guided_decoding: its JSON schema has 901 brackets .* exceeds 100"):
        grammars_of(tiny_tokenizer()).compile(GuidedDecodingParams(json=nested).source)


def test_equal_grammars_are_compiled_once():
    made = grammars_of(tiny_tokenizer())
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    first = made.compile(GuidedDecodingParams(json=schema).source)
    assert made.compile(GuidedDecodingParams(json=dict(schema)).source) is first
    assert made.compile(GuidedDecodingParams(json={"type": "object"}).source) is not first


class Person:
    """Stands in for a Pydantic model, with the one method that requests call."""

    @staticmethod
    def model_json_schema():
        return {"type": "integer"}


@pytest.mark.parametrize(
    ("guided", "starts"),
    [
        ({"json": Person}, "-0123456789"),
        ({"json": '{"type": "boolean"}'}, "tf"),
        ({"json_object": True}, "{"),
        ({"choice": ["yes", 'n"o']}, "yn"),
        ({"grammar": 'start: "x" | /[yz]/'}, "xyz"),
        ({"grammar": 'start: "<b>" | /[yz]<b>/ // "<b>" # <b>\n # <b>'}, "<yz"),
    ],
)
def test_every_field_makes_a_grammar(guided, starts):
    tokenizer, texts = byte_level()
    allowed = matcher_of(grammars_of(tokenizer), **guided).allowed(len(texts))
    assert {texts[token][:1].decode() for token in allowed} == set(starts)


def test_structures_follow_triggers():
    tokenizer, texts = byte_level()
    structure = {"begin": "<f=add>", "schema": {"type": "integer"}, "end": "</f>"}
    tag = {"type": "structural_tag", "structures": [structure], "triggers": ["<f="]}
    matcher = matcher_of(grammars_of(tokenizer), structural_tag=tag)
    assert EOS_ID in matcher.allowed(len(texts))
    matcher.accept(tokenizer.encode("fox <f=").ids)
    assert {texts[token][:1] for token in matcher.allowed(len(texts))} == {b"a"}
    matcher.accept(tokenizer.encode("add>12</f> dog").ids)
    assert EOS_ID in matcher.allowed(len(texts))


@pytest.mark.parametrize(
    ("guided", "message"),
    [
        ({}, "guided_decoding has none: expected exactly one of json, json_object, regex"),
        ({"json": {}, "regex": "a"}, "has json and regex: expected exactly one"),
        ({"json": "{"}, "json of guided_decoding is '{': expected JSON"),
        ({"json": [1]}, r"json of guided_decoding is \[1\]: expected a JSON object"),
        ({"json": {"a": object}}, "json of guided_decoding .*: expected what JSON can express"),
        ({"json_object": 1}, "json_object of guided_decoding is 1"),
        ({"regex": ""}, "regex of guided_decoding is '': expected a string that is not empty"),
        ({"regex": "a\0b"}, "regex of guided_decoding holds a NUL"),
        ({"grammar": 3}, "grammar of guided_decoding is 3"),
        ({"choice": "yes"}, "choice of guided_decoding is 'yes': expected a list"),
        ({"choice": []}, "choice of guided_decoding is empty"),
        ({"choice": ["a", 1]}, "choice of guided_decoding is 1"),
        ({"regex": "a" * (1 << 14) + "b"}, "regex of guided_decoding has 16,385 characters, which exceeds 16,384"),
        ({"grammar": "a" * (1 << 20) + "b"}, "grammar of guided_decoding has 1,048,577 characters, which exceeds"),
        ({"json": {"const": "\ud800"}}, "json of guided_decoding holds half of a surrogate pair"),
        ({"json": '{"const": "\\udc00"}'}, "json of guided_decoding holds half of a surrogate pair"),
        ({"regex": "a\udfff"}, "regex of guided_decoding holds half of a surrogate pair"),
        ({"choice": ["a", "\ud800b"]}, "choice of guided_decoding holds half of a surrogate pair"),
        ({"regex": "a", "reasoning_end_str": ["</t>", "\ud83d"]}, "reasoning_end_str of guided_decoding holds half"),
        ({"choice": ["a"] * 20_000}, "choice of guided_decoding has 20,000 entries, which exceeds"),
    ],
)
def test_fields_out_of_their_domain_are_refused(guided, message):
    with pytest.raises(TrtllmLiteError, match=message):
        GuidedDecodingParams(**guided)


@pytest.mark.parametrize(
    ("guided", "message"),
    [
        ({"regex": "(a"}, "regex of guided_decoding: .*unclosed group"),
        ({"json": {"type": "foo"}}, "json of guided_decoding: .*Invalid type: foo"),
        ({"json": {"not": {"type": "null"}}}, "json of guided_decoding: .*not"),
        ({"json": {"type": "string", "minLength": 4, "maxLength": 3}}, "json of guided_decoding: .*"),
        ({"grammar": "start: foo"}, "grammar of guided_decoding: .*foo"),
        ({"grammar": 'start: "a" <|user|> "b"'}, r"grammar of guided_decoding: it names the token '<\|user\|>'"),
        ({"grammar": 'start: "a" <[3]> "b"'}, r"grammar of guided_decoding: it names the token '<\[3\]>'"),
        ({"structural_tag": {"type": "structural_tag"}}, "structural_tag of guided_decoding: found .*expected"),
    ],
)
def test_what_is_no_grammar_is_refused(guided, message):
    with pytest.raises(ArgumentError, match=message):
        grammars_of(tiny_tokenizer()).compile(GuidedDecodingParams(**guided).source)


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"use_beam_search": True, "n": 2}, "guided_decoding does not go with use_beam_search"),
        ({"ignore_eos": True}, "leave end_id and ignore_eos out"),
        ({"end_id": 7}, "leave end_id and ignore_eos out"),
    ],
)
def test_what_does_not_go_with_a_grammar_is_refused(others, message):
    with pytest.raises(ArgumentError, match=message):
        SamplingParams(guided_decoding=GuidedDecodingParams(regex="a"), **others)


def test_models_without_tokenizer_or_end_token_are_refused():
    with pytest.raises(ArgumentError, match="this engine has no tokenizer"):
        Grammars(fake_manifest(), None)
    manifest = fake_manifest()
    endless = replace(manifest, model=replace(manifest.model, eos_token_ids=()))
    with pytest.raises(ArgumentError, match="an end token, and this model has none"):
        Grammars(endless, Tokenizer(tiny_tokenizer(), {}))


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ArgumentError, match=r"llguidance, which is not installed: pip install 'trtllm_lite\[guided\]'"):
        grammars_of_file.__wrapped__(tiny_tokenizer().to_str())


def test_an_old_library_is_refused(tmp_path: Path):
    source, library = tmp_path / "old.cc", tmp_path / "old.so"
    source.write_text('extern "C" const char* llg_get_version() { return "llguidance@1.7.0 derivre@0.3.8"; }\n')
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, source], check=True)
    with pytest.raises(ArgumentError, match=r"expected llguidance 1\.9 .* found llguidance@1\.7\.0.*pip install"):
        core().GrammarCompiler(library=str(library), tokenizer_json="{}", vocab_size=4, end_ids=[BOS_ID])


def test_a_tokenizer_that_the_library_cannot_read_is_refused():
    with pytest.raises(ArgumentError, match="expected a tokenizer that llguidance reads"):
        grammars_of(tokenizers.Tokenizer(models.WordLevel({"a": 0, "</s>": 1, "b": 2}, unk_token="a")))
