"""Finds the format in which a chat template takes contents of messages: texts, or lists of parts.

Hugging Face hands a template what the client sent. Templates of vision models iterate over the parts themselves, and
some accept nothing else. Each template is tested once for each role, by rendering a made-up conversation.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from trtllm_lite.errors import ArgumentError

Message = Mapping[str, Any]
Render = Callable[[Sequence[Message]], str]
_FIRST, _SECOND, _UNREAD = "oneqzx", "twoqzx", "restqzx"  # words that no template contains
_PARTS = [{"type": "text", "text": text, "unread": _UNREAD} for text in (_FIRST, _SECOND)]
_USER = {"role": "user", "content": "x"}
_CALL = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": {}}}
_CALLER = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_BEFORE: dict[str, Sequence[Message]] = {
    **dict.fromkeys(("system", "developer", "user"), ()),
    "assistant": (_USER,),
    "tool": (_USER, _CALLER),
}
_BEHIND: dict[str, Sequence[Message]] = {role: () if role in ("user", "tool") else (_USER,) for role in _BEFORE}
ROLES = frozenset(_BEFORE)
"""The roles for which a template is tested; contents of other roles are texts."""


@dataclass(frozen=True)
class ContentFormat:
    """The format in which a template, rendered by ``render``, takes contents of a role's messages."""

    render: Render
    role: str

    @cached_property
    def walks_parts(self) -> bool:
        """Whether the template prints the texts of all parts, and nothing else of them."""
        text = self._printed(_PARTS)
        return _FIRST in text and _SECOND in text and _UNREAD not in text

    @cached_property
    def takes_texts(self) -> bool:
        """Whether the template prints a content that is a text, or at least prints no parts."""
        return _FIRST in self._printed(_FIRST) or not self.walks_parts

    def of(self, content: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
        """``content``, a text or text parts, in the format that the template takes; as one text, parts become lines."""
        if isinstance(content, str):
            return content if self.takes_texts else [{"type": "text", "text": content}]
        if self.walks_parts:
            return content
        if any(part["type"] == "image" for part in content):
            raise ArgumentError("a message has an image, and the chat template takes texts alone: send it without chat")
        return "\n".join(part["text"] for part in content)

    def _printed(self, content: Any) -> str:
        """The template's output for a conversation with this content; empty if it refuses the content."""
        if self.role not in ROLES:
            return ""
        try:
            message = {"role": self.role, "content": content}
            return self.render([*_BEFORE[self.role], message, *_BEHIND[self.role]])
        except ArgumentError:
            return ""
