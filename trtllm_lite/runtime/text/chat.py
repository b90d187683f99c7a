"""Chat templates turn a conversation into the prompt that a model was trained on."""

from collections.abc import Mapping, Sequence
from typing import Any

from trtllm_lite.errors import ArgumentError, EngineError, shown
from trtllm_lite.runtime.text.template_process import render_template

Message = Mapping[str, Any]
_DEFAULT = "default"
_WITH_TOOLS = "tool_use"
_OWN_NAMES = ("messages", "tools")


class ChatTemplate:
    """The chat templates of a model, by name, and the special tokens they may name (``bos_token``, ``eos_token``, …).

    The templates are rendered by :func:`render_template`, in a process of bounded memory, time and output.
    """

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self._sources = dict(sources)
        self._special_tokens = dict(special_tokens)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> "ChatTemplate | None":
        """The templates of a tokenizer_config.json, or None if it has none. Raises EngineError for malformed ones."""
        sources = _sources(settings.get("chat_template"))
        if not sources:
            return None
        tokens = {name: value for name, value in settings.items() if name.endswith("_token")}
        texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in tokens.items()}
        return cls(sources, {name: text for name, text in texts.items() if isinstance(text, str)})

    @property
    def text(self) -> str:
        """All templates, one after the other."""
        return "\n".join(self._sources.values())

    def render(
        self,
        messages: Sequence[Message],
        *,
        template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for the assistant's answer to ``messages``.

        A message is {"role": …, "content": …}. The content is a string, or as in OpenAI's API a list of parts, which
        must be text ({"type": "text", "text": …}) and become lines of the content. ``tools`` are JSON schemas of
        functions that the model may call. ``arguments`` are further names that the template may use, such as
        ``enable_thinking`` (HF's and vLLM's chat_template_kwargs). ``template`` names one of several templates; without
        it "default" is taken, or with ``tools`` the one called "tool_use", if there is one.

        Raises ArgumentError if something is malformed, the template refuses it, or its output is too long; EngineError
        if the template itself is not valid.
        """
        names = {"documents": None, "add_generation_prompt": True, **self._special_tokens, **_checked(arguments)}
        names |= {"messages": flat_messages(messages), "tools": _checked_tools(tools)}
        return render_template(self._source(template, bool(tools)), names)

    def _source(self, name: str | None, with_tools: bool) -> str:
        if name is None:
            name = _WITH_TOOLS if with_tools and _WITH_TOOLS in self._sources else _DEFAULT
        if not isinstance(name, str) or name not in self._sources:
            raise ArgumentError(
                f"this model has no chat template named {shown(name)}, only "
                f"{', '.join(map(shown, sorted(self._sources)))}: name one of those as chat_template, or pass the "
                "whole prompt as text, without chat=True"
            )
        return self._sources[name]


def flat_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """``messages`` with strings as contents. Raises ArgumentError for messages that have other content than text."""
    if not messages:
        raise ArgumentError("a conversation is empty: expected at least one message")
    return [_flat(message) for message in messages]


def _flat(message: Message) -> dict[str, Any]:
    expected = 'expected {"role": "user" | "assistant" | "system" | "tool", "content": text}'
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise ArgumentError(f"a chat message is {shown(message)}: {expected}")
    content = message.get("content")
    if content is None and "tool_calls" in message:
        return dict(message)
    if isinstance(content, Sequence) and not isinstance(content, str):
        content = "\n".join(map(_text_of_part, content))
    if not isinstance(content, str):
        raise ArgumentError(f"the content of a chat message is {shown(content)}: {expected}")
    return {**message, "content": content}


def _text_of_part(part: Any) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind != "text" or not isinstance(part.get("text"), str):
        found = shown(part) if kind in (None, "text") else f"of type {shown(kind)}"
        raise ArgumentError(
            f'a part of a chat message\'s content is {found}: expected {{"type": "text", "text": …}}; images and '
            "other media are not supported"
        )
    return str(part["text"])


def _checked(arguments: Mapping[str, Any] | None) -> dict[str, Any]:
    if arguments is None:
        return {}
    if not isinstance(arguments, Mapping) or not all(isinstance(name, str) for name in arguments):
        raise ArgumentError(
            f"chat_template_kwargs is {shown(arguments)}: expected a dictionary of names, such as "
            '{"enable_thinking": False}'
        )
    taken = [name for name in _OWN_NAMES if name in arguments]
    if taken:
        raise ArgumentError(f"chat_template_kwargs holds {taken[0]}, which is an argument of its own: pass it there")
    return dict(arguments)


def _checked_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    if tools is None:
        return None
    is_list = isinstance(tools, Sequence) and not isinstance(tools, str)
    if not is_list or not all(isinstance(tool, Mapping) for tool in tools):
        raise ArgumentError(f"tools is {shown(tools)}: expected a list of JSON schemas (dictionaries)")
    return [dict(tool) for tool in tools]


def _sources(value: Any) -> dict[str, str]:
    """The templates by name in the setting ``chat_template``: a template, or a list of {"name": …, "template": …}."""
    if value is None:
        return {}
    entries = value if isinstance(value, list) else [{"name": _DEFAULT, "template": value}]
    try:
        sources = {entry["name"]: entry["template"] for entry in entries}
    except (TypeError, KeyError) as error:
        raise _malformed(value) from error
    if not all(isinstance(text, str) for pair in sources.items() for text in pair):
        raise _malformed(value)
    return sources


def _malformed(value: Any) -> EngineError:
    return EngineError(
        f"chat_template of tokenizer_config.json is {shown(value)}: expected a template, or a list of "
        '{"name": …, "template": …}; convert again'
    )
