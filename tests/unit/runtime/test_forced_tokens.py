"""Forced tokens of texts under grammars, against masks, an engine for regular expressions, and the tokenizer."""

import json
import random
from dataclasses import replace

import pytest
import regex

from tests.models import EOS_ID, PAD_ID, tiny_tokenizer
from trtllm_lite import GuidedDecodingParams, _testing
from trtllm_lite.runtime.session.grammars import Grammars
from trtllm_lite.runtime.text.tokenizer import Tokenizer

from .doubles import fake_manifest
from .test_guided_decoding import byte_fallback, byte_level

NUM_WITHOUT_TEXT = 37  # tokens that pad the vocabulary, as in models
PATTERNS = (
    "[0-9]{3}-abcdefg[a-c]{2,4}",
    "(the|the quick|a) (brown )?fox",
    "(naïve|café|你好)+ = [0-9]+",
    "a*(b|ca)?d{2,}",
    '"[^"]*"',
    '"[a-c]{3}"',
    "(ab){2,3}",
)
SCHEMA = {
    "type": "object",
    "properties": {
        "first": {"type": "integer"},
        "second": {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
            "required": ["x", "y"],
            "additionalProperties": False,
        },
        "third": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
    },
    "required": ["first", "second", "third"],
    "additionalProperties": False,
}


def grammars_of(tokenizer):
    """The grammars of a model with two end tokens; they find forced tokens."""
    manifest = fake_manifest()
    size = tokenizer.get_vocab_size() + NUM_WITHOUT_TEXT
    model = replace(manifest.model, vocab_size=size, eos_token_ids=(EOS_ID, PAD_ID))
    limits = replace(manifest.limits, max_draft_len=8)
    return Grammars(replace(manifest, model=model, limits=limits), Tokenizer(tokenizer, {}))


def start(made, **guided):
    """A matcher and a forcer of the same text."""
    grammar = made.compile(GuidedDecodingParams(**guided).source)
    return _testing.start_grammar(grammar), _testing.start_forcer(grammar)


@pytest.mark.parametrize("kind", [byte_level, byte_fallback])
def test_forced_tokens_are_the_only_continuation(kind):
    tokenizer, texts = kind()
    made, draw, num_forced = grammars_of(tokenizer), random.Random(0), 0
    for pattern in PATTERNS:
        expression = regex.compile(pattern.encode())
        for _ in range(6):
            matcher, forcer = start(made, regex=pattern)
            text = last = b""
            for _ in range(12):
                allowed = [token for token in matcher.allowed(len(texts)) if texts[token]]
                if not allowed:
                    break
                forced = forcer.forced_tokens(8)
                way = _only_way(expression, text)
                assert b"".join(texts[token] for token in forced) == way[: _length(forced, texts)], (pattern, text)
                if kind is byte_level and way:
                    assert forced == _behind(last, way, tokenizer, texts)[:8], (pattern, text)
                num_forced += len(forced)
                token = draw.choice(allowed)
                matcher.accept([token])
                forcer.accept([token])
                last = texts[token]
                text += last
    assert num_forced > 50


def _length(tokens, texts):
    return sum(len(texts[token]) for token in tokens)


def _behind(last, way, tokenizer, texts):
    """The tokens of ``way`` after ``last``; none if the tokenizer does not make ``last`` a token of its own there."""
    try:
        tokens = tokenizer.encode((last + way).decode()).ids
    except UnicodeDecodeError:
        return []
    if not last:
        return tokens
    return tokens[1:] if texts[tokens[0]] == last else []


def _only_way(expression, text):
    """The bytes that have to follow ``text``."""
    way = b""
    while not expression.fullmatch(text + way):
        nexts = [b for b in map(bytes, zip(range(256))) if _goes_on(expression, text + way + b)]
        if len(nexts) != 1:
            break
        way += nexts[0]
    return way


def _goes_on(expression, text):
    try:
        text.decode()
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":
            return False
    return expression.fullmatch(text, partial=True) is not None


def test_all_forced_tokens_are_found():
    tokenizer, texts = byte_level()
    _, forcer = start(grammars_of(tokenizer), regex="[0-9]{3}-abcdefg[a-c]")
    forcer.accept(tokenizer.encode("123").ids)
    assert forcer.forced_tokens(20) == tokenizer.encode("-abcdefg").ids
    assert forcer.forced_tokens(2) == tokenizer.encode("-abcdefg").ids[:2]
    assert b"".join(texts[token] for token in forcer.forced_tokens(20)) == b"-abcdefg"


@pytest.mark.parametrize(
    "written",
    [
        json.dumps({"first": 1, "second": {"x": 2, "y": 3}, "third": [4, 5]}),
        json.dumps({"first": 1, "second": {"x": 2, "y": 3}, "third": [4, 5]}, indent=2),
        json.dumps({"first": 1, "second": {"x": 2, "y": 3}, "third": [4, 5]}, indent=4),
        json.dumps({"first": 1, "second": {"x": 2, "y": 3}, "third": [4, 5]}, separators=(",", ":")),
    ],
)
def test_white_space_is_expected_as_it_stood_before(written):
    tokenizer, texts = byte_level()
    made = grammars_of(tokenizer)
    position = written.index(",") + 1  # here the white space before a field and after a colon is known
    _, forcer = start(made, json=SCHEMA)
    forcer.accept(tokenizer.encode(written[: written.index("1") + 1]).ids)
    forcer.accept(tokenizer.encode(",").ids)
    # The white space after a comma is not known yet: it is known after the next field.
    behind = written.index("2") + 1
    forcer.accept(tokenizer.encode(written[position:behind]).ids)
    forcer.accept(tokenizer.encode(",").ids)
    forced = b"".join(texts[token] for token in forcer.forced_tokens(40)).decode()
    assert forced
    assert written[behind + 1 :].startswith(forced)
    assert '"y"' in forced


@pytest.mark.parametrize("kind", [byte_level, byte_fallback])
def test_tokens_are_allowed_as_masks_allow_them(kind):
    tokenizer, texts = kind()
    made, draw = grammars_of(tokenizer), random.Random(1)
    lengths = []
    for pattern in PATTERNS:
        for _ in range(4):
            matcher, forcer = start(made, regex=pattern)
            for _ in range(8):
                allowed = matcher.allowed(len(texts))
                tokens = _random_tokens(matcher, draw, len(texts))
                assert forcer.num_allowed(tokens) == _num_allowed(matcher, tokens, len(texts)), (pattern, tokens)
                lengths.append(forcer.num_allowed(tokens))
                token = draw.choice(allowed)
                if not texts[token]:
                    break
                matcher.accept([token])
                forcer.accept([token])
    assert {0, 1, 2} < set(lengths)


def _random_tokens(matcher, draw, vocab_size):
    """Random tokens, the first of which the masks allow."""
    tokens = []
    for _ in range(draw.randint(0, 3)):
        allowed = matcher.allowed(vocab_size)
        tokens.append(draw.choice(allowed))
        matcher.accept(tokens[-1:])
        if tokens[-1] in (EOS_ID, PAD_ID):
            break
    matcher.roll_back(len(tokens))
    return [*tokens, draw.randrange(vocab_size)]


def _num_allowed(matcher, tokens, vocab_size):
    num = 0
    for token in tokens:
        if token not in matcher.allowed(vocab_size):
            break
        matcher.accept([token])
        num += 1
        if token in (EOS_ID, PAD_ID):
            break
    matcher.roll_back(num)
    return num


def test_grammars_of_engines_without_drafts_are_compiled_for_masks_alone():
    manifest = fake_manifest()
    model = replace(manifest.model, vocab_size=tiny_tokenizer().get_vocab_size(), eos_token_ids=(EOS_ID,))
    made = Grammars(replace(manifest, model=model), Tokenizer(tiny_tokenizer(), {}))
    assert manifest.limits.max_draft_len == 0
    assert _testing.start_forcer(made.compile(GuidedDecodingParams(regex="abc").source)) is None
