"""Chat templates: Jinja in a sandbox, with the names and settings that Hugging Face templates expect.

A template comes with a model, so it is data to distrust: it cannot reach Python objects, cannot change its inputs, and
what it may compute and print is bounded.
"""

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trtllm_lite.errors import ArgumentError, EngineError

MAX_RENDERED_CHARS = 1 << 22
Message = Mapping[str, Any]


class ChatTemplate:
    """One Jinja chat template and the special tokens it may name (``bos_token``, ``eos_token``, …)."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise EngineError(
                f"the chat template is not valid Jinja ({error}): convert again with a valid one"
            ) from error
        self._special_tokens = dict(special_tokens)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> "ChatTemplate | None":
        """The template of a tokenizer_config.json, or None if it has none. Of a list of named ones, "default"."""
        source = settings.get("chat_template")
        if isinstance(source, list):
            source = {entry["name"]: entry["template"] for entry in source}.get("default")
        if source is None:
            return None
        tokens = {name: value for name, value in settings.items() if name.endswith("_token") and value is not None}
        texts = {name: value["content"] if isinstance(value, dict) else value for name, value in tokens.items()}
        return cls(source, {name: text for name, text in texts.items() if isinstance(text, str)})

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt for the assistant's answer to ``messages`` ({"role": …, "content": …} each).

        Raises ArgumentError if a message is malformed, the template refuses them, or its output exceeds
        MAX_RENDERED_CHARS characters.
        """
        check_messages(messages)
        pieces: list[str] = []
        size = 0
        try:
            for piece in self._template.generate(
                messages=list(messages), tools=None, documents=None, add_generation_prompt=True, **self._special_tokens
            ):
                size += len(piece)
                if size > MAX_RENDERED_CHARS:
                    raise ArgumentError(
                        f"the chat template printed more than {MAX_RENDERED_CHARS:,} characters: shorten the messages"
                    )
                pieces.append(piece)
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
            raise ArgumentError(f"the model's chat template refuses these messages: {error}") from error
        return "".join(pieces)


def check_messages(messages: Sequence[Message]) -> None:
    """Raise ArgumentError unless ``messages`` is a non-empty list of mappings with a role and a content."""
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or "content" not in message:
            raise ArgumentError(
                f'a chat message is {message!r}: expected {{"role": "user" | "assistant" | "system", "content": text}}'
            )
    if not messages:
        raise ArgumentError("a conversation is empty: expected at least one message")


class _BoundedSandbox(ImmutableSandboxedEnvironment):
    """A sandbox in which repetition and powers cannot make huge values."""

    intercepted_binops = frozenset(("*", "**"))

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise jinja2.TemplateRuntimeError("** is not available in chat templates")
        for value, count in ((left, right), (right, left)):
            repeats = isinstance(value, str | list | tuple) and isinstance(count, int)
            if repeats and len(value) * count > MAX_RENDERED_CHARS:
                raise jinja2.TemplateRuntimeError(f"repeating {len(value)} items {count} times is too much")
        return super().call_binop(context, operator, left, right)


class _GenerationTag(jinja2.ext.Extension):
    """``{% generation %}…{% endgeneration %}`` marks the assistant's words for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - the attribute Jinja reads

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> jinja2.Environment:
    environment = _BoundedSandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda format: datetime.datetime.now().strftime(format)
    return environment


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML escapes: the prompt is not a web page."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
