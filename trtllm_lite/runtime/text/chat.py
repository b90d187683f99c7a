"""Renders conversations by chat templates into the prompts that a model was trained on."""

import math
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from trtllm_lite.errors import ArgumentError, EngineError, shown
from trtllm_lite.runtime.text.content_formats import ROLES, ContentFormat, Message
from trtllm_lite.runtime.text.template_process import render_template

_DEFAULT = "default"
_WITH_TOOLS = "tool_use"
_OWN_NAMES = ("messages", "tools")
_QUICK_SECONDS = 2e-3
_ROLE = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ChatTemplate:
    """The chat templates of a model, by name, and the special tokens that they may name (``bos_token``, …).

    The templates are rendered by :func:`render_template`, in a process of bounded memory, time and output.
    """

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self._sources = dict(sources)
        self._special_tokens = dict(special_tokens)
        self._formats: dict[tuple[str, str], ContentFormat] = {}
        self._last_seconds = math.inf

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

    @property
    def was_quick(self) -> bool:
        """Whether the last rendering took at most 2 ms: the rendering process was running, the template ordinary.

        Then even the thread of an event loop, which must not block for long, may render short messages.
        """
        return self._last_seconds <= _QUICK_SECONDS

    def render(
        self,
        messages: Sequence[Message],
        *,
        template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        arguments: Mapping[str, Any] | None = None,
        continue_final_message: bool = False,
    ) -> str:
        """The prompt for the assistant's answer to ``messages``.

        A message is {"role": …, "content": …}. The role is a word of letters, digits, _ and -. The content is a string,
        or as in OpenAI's API a list of parts, which must be text ({"type": "text", "text": …}): a template that
        iterates over parts gets them unchanged, others get one text with a line for each part. ``tools`` are JSON
        schemas of functions that the model may call. ``arguments`` are further names that the template may use, such as
        ``enable_thinking`` (HF's and vLLM's chat_template_kwargs). ``template`` names one of several templates; without
        it "default" is taken, or with ``tools`` the one called "tool_use", if there is one.

        With ``continue_final_message`` the prompt ends where the text of the last message ends, so that the answer
        continues it, as in transformers' ``apply_chat_template``: spaces at the end stay, unless the template drops
        them.

        Raises ArgumentError if something is malformed, the template refuses it, or its output is too long; EngineError
        if the template itself is not valid.
        """
        source = self._source(template, bool(tools))
        own = {"tools": _checked_tools(tools)}
        names = {"documents": None, "add_generation_prompt": True, **self._special_tokens, **_checked(arguments), **own}
        shaped = [self._shaped(message, source) for message in checked_messages(messages)]
        if not continue_final_message:
            return self._rendered(source, {**names, "messages": shaped})
        mark = f"END-OF-TEXT-{secrets.token_hex(16)}"
        text = _marked(shaped, mark)
        return _cut(self._rendered(source, {**names, "messages": shaped}), text, mark)

    def _rendered(self, source: str, names: Mapping[str, Any]) -> str:
        start = time.perf_counter()
        try:
            return render_template(source, names)
        finally:
            self._last_seconds = time.perf_counter() - start

    def _shaped(self, message: dict[str, Any], source: str) -> dict[str, Any]:
        """A message with its content in the format that a template takes."""
        content = message.get("content")
        return message if content is None else {**message, "content": self._format(source, message["role"]).of(content)}

    def _format(self, source: str, role: str) -> ContentFormat:
        key = source, role if role in ROLES else ""
        if key not in self._formats:
            names = {"documents": None, "tools": None, "add_generation_prompt": False, **self._special_tokens}
            self._formats[key] = ContentFormat(
                lambda probe: render_template(source, {**names, "messages": probe}), key[1]
            )
        return self._formats[key]

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


def checked_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """``messages`` whose contents are texts, or lists of text parts. Raises ArgumentError for others."""
    if not messages:
        raise ArgumentError("a conversation is empty: expected at least one message")
    return [_checked_message(message) for message in messages]


def _checked_message(message: Message) -> dict[str, Any]:
    expected = 'expected {"role": "user" | "assistant" | "system" | "tool", "content": text}'
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise ArgumentError(f"a chat message is {shown(message)}: {expected}")
    if not _ROLE.fullmatch(message["role"]):
        raise ArgumentError(
            f"the role of a chat message is {shown(message['role'])}: expected 1 to 64 letters, digits, _ and -"
        )
    content = message.get("content")
    if content is None and "tool_calls" in message:
        return dict(message)
    if isinstance(content, Sequence) and not isinstance(content, str):
        return {**message, "content": [_checked_part(part) for part in content]}
    if not isinstance(content, str):
        raise ArgumentError(f"the content of a chat message is {shown(content)}: {expected}")
    return dict(message)


def _checked_part(part: Any) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "image" and len(part) == 1:
        return dict(part)
    if kind != "text" or not isinstance(part.get("text"), str):
        found = shown(part) if kind in (None, "text") else f"of type {shown(kind)}"
        raise ArgumentError(
            f'a part of a chat message\'s content is {found}: expected {{"type": "text", "text": …}}; images and '
            "other media are not supported"
        )
    return dict(part)


def _marked(messages: list[dict[str, Any]], mark: str) -> str:
    """Put a mark after the text of the last message; returns the text without it."""
    content = messages[-1].get("content")
    if isinstance(content, str):
        messages[-1] = {**messages[-1], "content": f"{content}{mark} "}
        return content
    if not content:
        raise ArgumentError("continue_final_message: the last message has no text to continue; set it to false")
    text: str = content[-1]["text"]
    messages[-1] = {**messages[-1], "content": [*content[:-1], {**content[-1], "text": f"{text}{mark} "}]}
    return text


def _cut(prompt: str, text: str, mark: str) -> str:
    """The prompt up to the mark that follows ``text`` in it."""
    place = prompt.rfind(mark)
    if place < 0 or text.strip() not in prompt:
        raise ArgumentError(
            "continue_final_message: the chat template changes the last message's content; set it to false"
        )
    # A template that drops the space after the mark would have dropped spaces before it.
    return prompt[:place] if prompt.startswith(f"{mark} ", place) else prompt[:place].rstrip()


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
        raise ArgumentError(f"chat_template_kwargs holds {taken[0]}, which is a separate argument: pass it as that one")
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
