"""GuidedDecodingParams: the form that a generated text must have."""

import json as json_module  # a field has its name
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from trtllm_lite.errors import ArgumentError, LimitError, shown
from trtllm_lite.runtime.values import check_flag, check_list

MAX_GRAMMAR_LENGTH = 1 << 20
"""Most characters of a grammar, or of a schema as JSON."""
STRUCTURAL_TAG = "structural_tag"
_MAX_CHOICES = 1 << 14
_MAX_MARKER_LENGTH = 256


@dataclass(frozen=True)
class GrammarSource:
    """A grammar's text, and its kind: one of ``_core.GrammarCompiler``'s, or STRUCTURAL_TAG.

    ``field`` is the one of GuidedDecodingParams that it came by. ``markers`` are what a Lark grammar's text names and
    leaves open, as only the tokenizer tells which of it are special tokens; no request can bring any.
    """

    field: str
    kind: str
    text: str
    markers: tuple["Marker", ...] = ()


@dataclass(frozen=True)
class Marker:
    """A rule of a grammar: ``text``, in which the names of special tokens stand for these.

    ``is_behind_text``: the rule is any text, up to the first ``text`` and with it.
    """

    rule: str
    text: str
    is_behind_text: bool = False


@dataclass(frozen=True, kw_only=True)
class GuidedDecodingParams:
    """The form of a generated text, by exactly one of the first six fields; the names are TensorRT-LLM's.

    For vLLM's ``structured_outputs=StructuredOutputsParams(…)`` write ``guided_decoding=GuidedDecodingParams(…)``, with
    the same fields.

    - ``json``: a JSON schema, as a string or a dictionary, or a Pydantic model. What of JSON Schema llguidance does not
      support is an error
    - ``json_object``: True for any JSON object
    - ``regex``: a regular expression, in Rust's syntax, for the whole text
    - ``grammar``: a context-free grammar in llguidance's variant of Lark
    - ``choice``: one of several texts
    - ``structural_tag``: text in which some tags hold JSON of a schema, ``{"type": "structural_tag", "structures":
      [{"begin": "<call=add>", "schema": {…}, "end": "</call>"}], "triggers": ["<call="]}``, as a string or a
      dictionary. Where the text comes to a trigger, it goes on as one of the structures that begin with it

    - ``reasoning_end_str``: what ends the reasoning of a model that thinks before it answers, such as ``"</think>"``
      (vLLM's name in its reasoning config), or a list of texts that do so one behind the other, with anything between
      them: ``["<|channel|>final", "<|message|>"]`` of gpt-oss. The form is then that of what follows it; tokens before
      are free, but for end tokens. Where the prompt holds it behind its last end token, and its last ``<|end|>``, a
      chat template has closed the block already, and all of the text has the form

    The text is all that is generated, up to the model's end token, which comes where the form is complete and nowhere
    else; what ends a text otherwise (``max_tokens``, ``stop``, ``stop_token_ids``, a timeout) can leave it incomplete.
    Special tokens are no part of it. Needs llguidance: ``pip install 'trtllm_lite[guided]'``.

    Raises ArgumentError unless one field is given and has the right type, LimitError if it is longer than
    ``MAX_GRAMMAR_LENGTH`` characters. Grammars are compiled when a request is made of them, which raises what
    ``Grammars.compile`` does.
    """

    json: str | Mapping[str, Any] | type | None = None
    json_object: bool = False
    regex: str | None = None
    grammar: str | None = None
    choice: Sequence[str] | None = None
    structural_tag: str | Mapping[str, Any] | None = None
    reasoning_end_str: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        check_flag("json_object of guided_decoding", self.json_object)
        forms = [field for field in fields(GuidedDecodingParams) if field.name != "reasoning_end_str"]
        given = [field.name for field in forms if getattr(self, field.name) is not field.default]
        if len(given) != 1:
            names = ", ".join(field.name for field in forms)
            found = " and ".join(given) or "none"
            raise ArgumentError(f"guided_decoding has {found}: expected exactly one of {names}")
        text = self.source.text
        if len(text) > MAX_GRAMMAR_LENGTH:
            raise LimitError(
                f"{given[0]} of guided_decoding has {len(text):,} characters, which exceeds {MAX_GRAMMAR_LENGTH:,}: "
                "simplify it"
            )
        self._check_reasoning_end()
        if "\0" in text:
            raise ArgumentError(f"{given[0]} of guided_decoding holds a NUL character: expected none")

    def _check_reasoning_end(self) -> None:
        length = sum(map(len, self.reasoning_end))
        if length > _MAX_MARKER_LENGTH:
            raise LimitError(
                f"reasoning_end_str of guided_decoding has {length:,} characters, which exceeds {_MAX_MARKER_LENGTH}: "
                "pass the marker alone"
            )

    @cached_property
    def reasoning_end(self) -> tuple[str, ...]:
        """The texts that end the reasoning, one behind the other; none if there is no reasoning."""
        if self.reasoning_end_str is None:
            return ()
        if isinstance(self.reasoning_end_str, list | tuple) and self.reasoning_end_str:
            return tuple(_text("reasoning_end_str", text) for text in self.reasoning_end_str)
        return (_text("reasoning_end_str", self.reasoning_end_str),)

    @cached_property
    def source(self) -> GrammarSource:
        """What is to be compiled."""
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
        tags = _object("structural_tag", self.structural_tag)
        return GrammarSource("structural_tag", STRUCTURAL_TAG, _json("structural_tag", tags))


def _text(field: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ArgumentError(f"{field} of guided_decoding is {shown(value)}: expected a string that is not empty")
    return value


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
    # As one terminal the texts are a single automaton; alternatives of a rule would be tried one by one.
    return "start: CHOICE\nCHOICE: " + " | ".join(_json("choice", _text("choice", text)) for text in texts)
