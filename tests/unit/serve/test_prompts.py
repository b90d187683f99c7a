"""Prompts that are cut out of large bodies, compared with Python's json."""

import json

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rounds import rounds
from trtllm_lite.runtime.core import core
from trtllm_lite.serve import bodies
from trtllm_lite.serve.api_error import ApiError
from trtllm_lite.serve.bodies import decode
from trtllm_lite.serve.bodies.completion import CompletionBody
from trtllm_lite.serve.bodies.prompts import PromptField, cut_prompts

FIELD = PromptField("prompt", "prompts", 4)
IDS = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=9)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
PROMPTS = st.one_of(TEXTS, IDS, st.lists(st.one_of(TEXTS, IDS), min_size=1, max_size=4))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=9,
)
BROKEN = st.text('{}[]",:\\1-0 ab\n', max_size=30)


@settings(max_examples=rounds(300), deadline=None)
@given(
    PROMPTS,
    st.dictionaries(TEXTS.filter(lambda key: key != "prompt"), VALUES, max_size=3),
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from([None, 1]),
)
def test_a_body_is_its_prompts_and_the_rest(prompt, others, place, ascii_only, indent):
    items = list(others.items())
    items.insert(place, ("prompt", prompt))
    body = json.dumps(dict(items), ensure_ascii=ascii_only, indent=indent).encode()
    rest, found = cut_prompts(body, FIELD, 1 << 20)
    assert msgspec.json.decode(rest) == {**msgspec.json.decode(body), "prompt": []}
    plain = [entry.tolist() if isinstance(entry, np.ndarray) else entry for entry in [found, *found]]
    assert (plain[1:] if isinstance(found, list) else plain[0]) == prompt


@settings(max_examples=rounds(300), deadline=None)
@given(BROKEN, BROKEN)
def test_what_is_no_json_does_not_become_some(before, value):
    body = b'{"a":%b"prompt":%b}' % (before.encode(), value.encode())
    rest, _ = cut_prompts(body, FIELD, 1 << 20)
    if is_json(rest):
        assert is_json(body)


def is_json(body):
    try:
        json.loads(body)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": [1, 01]}',
        b'{"prompt": [1, 2.0]}',
        b'{"prompt": [1, 9223372036854775808]}',
        b'{"prompt": ["a", null]}',
        b'{"prompt": [1, -]}',
        b'{"prompt": [1,]}',
        b'{"prompt": "a", "prompt": "b"}',
        b'{"prompt": "a\\"}',
        b'{"pro\\u006dpt": "a"}',
        b'[{"prompt": "a"}]',
        b'{"prompt": "a"',
        b"",
    ],
)
def test_what_is_neither_texts_nor_ids_stays_in_the_body(body):
    assert core().find_prompts(body, "prompt", 4) is None
    with pytest.raises(ApiError, match="bytes beside the texts or token ids of prompt, which exceeds the 1 that"):
        cut_prompts(body + b"  ", FIELD, 1)


def test_a_large_body_holds_what_a_small_one_does(monkeypatch):
    content = {"prompt": [[3, 4], "a", [5]], "max_tokens": 3, "stop": ["x"]}
    small = decode(json.dumps(content).encode(), CompletionBody)
    monkeypatch.setattr(bodies, "_LARGE_BODY", 1)
    large = decode(json.dumps(content).encode(), CompletionBody)
    assert [*map(list, large.prompt)] == [*map(list, small.prompt)]
    large.prompt = small.prompt
    assert large == small


def test_more_than_prompts_can_have_is_refused_before_it_is_decoded(monkeypatch):
    monkeypatch.setattr(bodies, "_LARGE_BODY", 1)

    def refusal(body, max_prompt_bytes):
        with pytest.raises(ApiError) as error:
            decode(body.encode(), CompletionBody, max_prompt_bytes=max_prompt_bytes)
        return error.value

    error = refusal('{"prompt": [1], "guided_json": [%s 0]}' % ("{}," * 9), 50)
    assert (error.status, error.code) == (413, "body_too_large")
    assert "the body has 60 bytes beside the texts or token ids of prompt, which exceeds the 50" in error.message
    error = refusal('{"prompt": ["a", "%s"]}' % ("b" * 20), 21)
    assert (error.status, error.param) == (413, "prompt")
    assert "prompt has a text of 22 bytes, which exceeds the 21" in error.message
    error = refusal('{"prompt": [%s "a"]}' % ('"a",' * 1024), 50)
    assert (error.status, error.message) == (400, "prompt has 1025 prompts: expected 1 to 1024")
    error = refusal('{"prompt": ["a\\x"]}', 50)
    assert (error.status, error.code) == (400, "invalid_json")
