"""Calls written as Python: their arguments against Python's own reader of literals."""

import ast
import io
import json
import tokenize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtllm_lite.serve.parsers.python_literal import literal_as_json

from .parsing import parsed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[f()]", [["f", "{}"]]),
        ('[get_weather(city="Paris", days=3), f()]', [["get_weather", '{"city": "Paris", "days": 3}'], ["f", "{}"]]),
        (" [ f ( a = 1 , ) , f() ] ", [["f", '{"a": 1}'], ["f", "{}"]]),
        ("[f(a=True, b=None, c=false, d=null)]", [["f", '{"a": true, "b": null, "c": false, "d": null}']]),
        ("[f(a=[1, 'x'], b={'k': {}})]", [["f", '{"a": [1, "x"], "b": {"k": {}}}']]),
        ("[f(a='[g()]', b=\")\")]", [["f", '{"a": "[g()]", "b": ")"}']]),
        ("[f(a='''two\nlines'''), f(a=\"\"\"'\"\"\")]", [["f", '{"a": "two\\nlines"}'], ["f", '{"a": "\'"}']]),
        ("[functions.f(a=1)]", [["functions.f", '{"a": 1}']]),
        ("[f(a=1)] and so", [["f", '{"a": 1}'], "and so"]),
        ("[f(a=1), 2]", [["f", '{"a": 1}'], ", 2]"]),
        ("[]", ["[]"]),
        ("[1, 2]", ["[1, 2]"]),
        ("[see (1)]", ["[see (1)]"]),
        ("[f(1)]", ["[f(1)]"]),
        ("[f(a=b)]", ["[f(a=b)]"]),
        ("[f(a=__import__('os'))]", ["[f(a=__import__('os'))]"]),
        ("[f(**{'a': 1})]", ["[f(**{'a': 1})]"]),
        ("[f(a=1+1)]", ["[f(a=1+1)]"]),
        ("[f(a={1: 2})]", ["[f(a={1: 2})]"]),
        ("[f(a={1, 2})]", ["[f(a={1, 2})]"]),
        ("[f(a=1, b={1, 2})] so", [["f", '{"a": 1}', "…", "[f(a=1, b={1, 2})] so"]]),
        ("[f(a='x", [["f", '{"a": "x"}', "…", "[f(a='x"]]),
        ("I call [f()]", ["I call [f()]"]),
        ("[f(a=1", ["[f(a=1"]),
        ("[f(a=1, b=2", [["f", '{"a": 1}', "…", "[f(a=1, b=2"]]),
        ("[f(a=", ["[f(a="]),
        ("[f", ["[f"]),
    ],
)
def test_a_text_is_a_list_of_calls(text, expected):
    assert parsed(text, "pythonic") == expected


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
)


@settings(deadline=None)
@given(VALUES)
def test_literals_mean_what_python_means(value):
    written = literal_as_json(repr(value))
    assert written is not None
    assert json.loads(written) == value == ast.literal_eval(repr(value))


@pytest.mark.filterwarnings("ignore:invalid")
@settings(deadline=None)
@given(st.lists(st.sampled_from([*"\"'\\abnNxuU0189{ \n", "\\x41", "\\u00e9", "\\U0001F642", "\\101"]), max_size=12))
def test_strings_mean_what_python_means(parts):
    for quote in ('"', "'", '"""', "'''"):
        literal = f"{quote}{''.join(parts)}{quote}"
        in_python = literal.replace("\n", "\\n") if len(quote) == 1 else literal
        try:
            expected = ast.literal_eval(in_python)
        except (SyntaxError, ValueError):
            continue
        tokens = tokenize.generate_tokens(io.StringIO(in_python).readline)
        is_one = sum(token.type == tokenize.STRING for token in tokens) == 1  # Python joins neighbouring strings
        if is_one and "\\N" not in literal and "\\\n" not in literal:
            assert json.loads(literal_as_json(literal) or "null") == expected, literal


@pytest.mark.parametrize(
    "text", ["", "a", "1 2", "[1", "(1,)", "b'a'", "'a", "1_000", "0x10", "01", "1j", "{'a'}", "-"]
)
def test_other_expressions_are_no_literals(text):
    assert literal_as_json(text) is None


@pytest.mark.parametrize(("text", "expected"), [("1.", "1.0"), (".5", "0.5"), ("-0.5e3", "-0.5e3"), ("1e400", "1e400")])
def test_floats_become_json(text, expected):
    assert literal_as_json(text) == expected


def test_pairs_of_escapes_are_one_character():
    assert json.loads(literal_as_json(r"'\ud83d\ude42'") or "") == "🙂"


def test_nesting_is_bounded():
    assert literal_as_json("[" * 64 + "]" * 64) == "[" * 64 + "]" * 64
    assert literal_as_json("[" * 65 + "]" * 65) is None
