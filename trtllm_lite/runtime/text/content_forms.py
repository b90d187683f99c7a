"""In which form a chat template takes the contents of messages: as texts, or as lists of parts that it walks over.

Hugging Face hands a template what the client sent, and templates of models that see walk over the parts themselves;
some know nothing else. Each template is asked once for each role, by what it prints of a made-up conversation.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from trtllm_lite.errors import ArgumentError

Message = Mapping[str, Any]
Render = Callable[[Sequence[Message]], str]
_FIRST, _SECOND, _UNREAD = "oneqzx", "twoqzx", "restqzx"  # words that no template has
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
"""The roles that a template is asked about; contents of others are texts."""


@dataclass(frozen=True)
class ContentForm:
    """The form that a template, which ``render`` renders, takes contents of a role's messages in."""

    render: Render
    role: str

    @cached_property
    def walks_parts(self) -> bool:
        """Whether the template prints the texts of all parts, and nothing else that they hold."""
        text = self._printed(_PARTS)
        return _FIRST in text and _SECOND in text and _UNREAD not in text

    @cached_property
    def takes_texts(self) -> bool:
        """Whether a content that is a text is printed, or at least no parts are."""
        return _FIRST in self._printed(_FIRST) or not self.walks_parts

    def of(self, content: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
        """A content, a text or parts that are texts, in the form that the template takes; texts of parts are lines."""
        if isinstance(content, str):
            return content if self.takes_texts else [{"type": "text", "text": content}]
        return content if self.walks_parts else "\n".join(part["text"] for part in content)

    def _printed(self, content: Any) -> str:
        """What the template prints of a conversation with this content; nothing if it refuses it."""
        if self.role not in ROLES:
            return ""
        try:
            message = {"role": self.role, "content": content}
            return self.render([*_BEFORE[self.role], message, *_BEHIND[self.role]])
        except ArgumentError:
            return ""
