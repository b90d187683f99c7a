"""Defines GuidedDecodingParams: the grammar that a generated text must match."""

import json as json_module  # json is also the name of a field
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from trtllm_lite.errors import ArgumentError, LimitError, shown
from trtllm_lite.runtime.session.reasoning import Thoughts
from trtllm_lite.runtime.values import check_flag, check_list, is_unicode

MAX_GRAMMAR_LENGTH = 1 << 20
"""The maximum number of characters of a grammar, or of a schema as JSON."""
MAX_REGEX_LENGTH = 1 << 14
"""The maximum number of characters of a regular expression; compilation may be quadratic in time and memory."""
STRUCTURAL_TAG = "structural_tag"
_MAX_CHOICES = 1 << 14
_MAX_MARKER_LENGTH = 256


@dataclass(frozen=True)
class GrammarSource:
    """A grammar's text, and its kind: one of ``_core.GrammarCompiler``'s, or STRUCTURAL_TAG.

    ``field`` is the field of GuidedDecodingParams that it came from. ``markers`` are rules that a Lark grammar names
    but does not define, because only the tokenizer tells which of them are special tokens; requests cannot contain any.
    ``has_thoughts``: the grammar covers the whole text, including the thoughts in it.
    """

    field: str
    kind: str
    text: str
    markers: tuple["Marker", ...] = ()
    has_thoughts: bool = False


@dataclass(frozen=True)
class Marker:
    """A rule of a grammar for ``text``, in which names of special tokens stand for these tokens.

    ``is_behind_text``: the rule matches any text up to and including the first ``text``.
    """

    rule: str
    text: str
    is_behind_text: bool = False


@dataclass(frozen=True, kw_only=True)
class GuidedDecodingParams:
    """The grammar that a generated text must match, given by one of the first six fields; the names are TensorRT-LLM's.

    For vLLM's ``structured_outputs=StructuredOutputsParams(…)`` write ``guided_decoding=GuidedDecodingParams(…)``, with
    the same fields.

    - ``json``: a JSON schema, as a string or a dictionary, or a Pydantic model. Keywords that llguidance does not
      support are errors, except for unknown values of ``format``, which JSON Schema calls annotations
    - ``json_object``: True for any JSON object
    - ``regex``: a regular expression, in Rust's syntax, for the whole text
    - ``grammar``: a context-free grammar in llguidance's variant of Lark
    - ``choice``: one of several texts
    - ``structural_tag``: text in which some tags hold JSON of a schema, ``{"type": "structural_tag", "structures":
      [{"begin": "<call=add>", "schema": {…}, "end": "</call>"}], "triggers": ["<call="]}``, as a string or a
      dictionary. After a trigger, the text must continue as one of the structures whose ``begin`` starts with it

    - ``reasoning_end_str``: what ends the reasoning of a model that thinks before it answers, such as ``"</think>"``
      (vLLM's name in its reasoning config), or a list of texts that end it together, one after the other, with anything
      between them: ``["<|channel|>final", "<|message|>"]`` for gpt-oss. An entry that is a list stands for any of its
      texts. The grammar, which may be left out then, and the stop words apply to the answer after the reasoning; a
      grammar also bans end tokens within the reasoning. If the prompt's last turn holds this end, a chat template has
      closed the reasoning already, and all generated text is the answer
    - ``reasoning_start_str``: what begins the reasoning, or a list of such texts. A generated text then has reasoning
      only if it begins with one of them after white space, or the prompt's last turn holds one; otherwise all of it is
      the answer. Without this field generated texts begin with reasoning

    The text is all that is generated, up to the model's end token, which comes where the text matches the grammar and
    nowhere else; what ends a text otherwise (``max_tokens``, ``stop``, ``stop_token_ids``, a timeout) can leave it
    incomplete. Special tokens are no part of it. Needs llguidance: ``pip install 'trtllm_lite[guided]'``.

    Between the tokens of JSON there may be a line break and an indentation, or some blanks (``WHITE_SPACE`` of
    ``grammar_texts``), unless the schema's ``x-guidance`` says otherwise.

    Raises ArgumentError unless one of these fields is given and has the right type, LimitError for a grammar of more
    than ``MAX_GRAMMAR_LENGTH`` characters, or a regular expression of more than ``MAX_REGEX_LENGTH``. Grammars are
    compiled when a request is made with them, which raises the errors of ``Grammars.compile``.
    """

    json: str | Mapping[str, Any] | type | None = None
    json_object: bool = False
    regex: str | None = None
    grammar: str | None = None
    choice: Sequence[str] | None = None
    structural_tag: str | Mapping[str, Any] | None = None
    reasoning_start_str: str | Sequence[str] | None = None
    reasoning_end_str: str | Sequence[str | Sequence[str]] | None = None

    def __post_init__(self) -> None:
        check_flag("json_object of guided_decoding", self.json_object)
        self._check_fields()
        thoughts = self.thoughts
        if thoughts is None:
            if self.reasoning_start_str is not None:
                raise ArgumentError("guided_decoding has reasoning_start_str alone: give reasoning_end_str, too")
            return
        _check_length("reasoning_start_str", thoughts.starts)
        _check_length("reasoning_end_str", [text for texts in thoughts.ends for text in texts])

    def _check_fields(self) -> None:
        grammars = [field for field in fields(GuidedDecodingParams) if not field.name.startswith("reasoning_")]
        given = [field.name for field in grammars if getattr(self, field.name) is not field.default]
        if len(given) > 1 or (not given and self.reasoning_end_str is None):
            names = ", ".join(field.name for field in grammars)
            found = " and ".join(given) or "none"
            raise ArgumentError(f"guided_decoding has {found}: expected exactly one of {names}")
        text = "" if self.source is None else self.source.text
        most = MAX_GRAMMAR_LENGTH if self.regex is None else MAX_REGEX_LENGTH
        if len(text) > most:
            raise LimitError(
                f"{given[0]} of guided_decoding has {len(text):,} characters, which exceeds {most:,}: simplify it"
            )
        _check_is_text("".join(given), text)

    @cached_property
    def thoughts(self) -> Thoughts | None:
        """The markers of the reasoning; None if there is none."""
        if self.reasoning_end_str is None:
            return None
        starts = () if self.reasoning_start_str is None else _texts("reasoning_start_str", self.reasoning_start_str)
        ends = self.reasoning_end_str
        parts = ends if isinstance(ends, list | tuple) and ends else [ends]
        return Thoughts(starts, tuple(_texts("reasoning_end_str", part) for part in parts))

    @cached_property
    def source(self) -> GrammarSource | None:
        """The grammar to compile; None if there is none."""
        if self.json is not None:
            return GrammarSource("json", "json_schema", _schema(self.json))
        if self.json_object:
            return GrammarSource("json_object", "json_schema", '{"type": "object"}')
        if self.regex is not None:
            return GrammarSource("regex", "regex", _text("regex", self.regex))
        if self.grammar is not None:
            return GrammarSource("grammar", "lark", _text("grammar", self.grammar))
        if self.choice is not None:
            return GrammarSource("choice", "lark", _alternatives(self.choice))
        if self.structural_tag is None:
            return None
        tags = _object("structural_tag", self.structural_tag)
        return GrammarSource("structural_tag", STRUCTURAL_TAG, _json("structural_tag", tags))


def _texts(field: str, value: Any) -> tuple[str, ...]:
    """``value`` as a tuple of texts: it is one text, or a list of texts."""
    return tuple(_text(field, text) for text in (value if isinstance(value, list | tuple) and value else [value]))


def _check_length(field: str, texts: Sequence[str]) -> None:
    length = sum(map(len, texts))
    if length > _MAX_MARKER_LENGTH:
        raise LimitError(
            f"{field} of guided_decoding has {length:,} characters, which exceeds {_MAX_MARKER_LENGTH}: pass the "
            "marker alone"
        )


def _text(field: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ArgumentError(f"{field} of guided_decoding is {shown(value)}: expected a string that is not empty")
    _check_is_text(field, value)
    return value


def _check_is_text(field: str, text: str) -> None:
    if "\0" in text:
        raise ArgumentError(f"{field} of guided_decoding holds a NUL character: expected none")
    if not is_unicode(text):
        raise ArgumentError(
            f"{field} of guided_decoding holds half of a surrogate pair: expected Unicode text, whole characters"
        )


def _object(field: str, value: Any) -> Mapping[str, Any]:
    try:
        parsed = json_module.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{field} of guided_decoding is {shown(value)}: expected JSON") from error
    if not isinstance(parsed, Mapping):
        raise ArgumentError(f"{field} of guided_decoding is {shown(parsed)}: expected a JSON object")
    return parsed


def _schema(value: Any) -> str:
    make = getattr(value, "model_json_schema", None)
    schema = _object("json", make() if callable(make) else value)
    return _json("json", schema)


def _json(field: str, value: Any) -> str:
    try:
        return json_module.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(f"{field} of guided_decoding is {shown(value)}: expected what JSON can express") from error


def _alternatives(texts: Any) -> str:
    check_list("choice of guided_decoding", texts, _MAX_CHOICES, "a list of strings")
    if not len(texts):
        raise ArgumentError("choice of guided_decoding is empty: expected one string at least")
    # As one terminal the texts form a single automaton; alternatives of a rule would be tried one by one.
    return "start: CHOICE\nCHOICE: " + " | ".join(_json("choice", _text("choice", text)) for text in texts)
