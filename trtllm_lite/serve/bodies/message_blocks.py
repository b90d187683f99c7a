"""The messages of /v1/messages: content blocks, which become messages of a chat."""

import re
from typing import Any, Literal

import msgspec

from trtllm_lite.errors import shown
from trtllm_lite.serve.api_error import ApiError
from trtllm_lite.serve.bodies import check_num_messages, convert
from trtllm_lite.serve.bodies.history import History, Message, as_text

Blocks = list[dict[str, Any]]
_DONE = re.compile("(server|mcp)_tool_use|[a-z_]+_tool_result|compaction")
"""Blocks about actions of models on other servers, which become text of the assistant."""
_GIVEN = ("tool_reference", "search_result")
"""Blocks that become text of the user, or of a tool."""


class _Message(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    role: Literal["user", "assistant", "system"]
    content: str | Blocks


class _Text(msgspec.Struct, kw_only=True):
    text: str


class _Thinking(msgspec.Struct, kw_only=True):
    thinking: str


class _ToolUse(msgspec.Struct, kw_only=True):
    id: str
    name: str
    input: dict[str, Any]


class _ToolResult(msgspec.Struct, kw_only=True):
    tool_use_id: str
    content: str | Blocks | None = None
    is_error: bool | None = None


def messages_of(messages: Blocks, system: str | Blocks | None) -> list[Message]:
    """The messages of a chat. Raises ApiError, which names the block."""
    check_num_messages("messages", len(messages))
    history = History()
    if system:
        history.say("system", _texts(system, "system"))
    for number, given in enumerate(messages):
        where = f"messages[{number}]"
        message = convert(given, _Message, where)
        blocks = [{"type": "text", "text": message.content}] if isinstance(message.content, str) else message.content
        if message.role == "assistant":
            _add_answer(history, blocks, f"{where}.content")
        else:
            _add_words(history, message.role, blocks, f"{where}.content")
    return history.messages


def _add_answer(history: History, blocks: Blocks, where: str) -> None:
    for number, block in enumerate(blocks):
        place = f"{where}[{number}]"
        match block.get("type"):
            case "text":
                history.answer([convert(block, _Text, place).text])
            case "thinking":
                history.think(convert(block, _Thinking, place).thinking)
            case "redacted_thinking":
                pass  # it is encrypted
            case "tool_use":
                call = convert(block, _ToolUse, place)
                history.call(call.id, call.name, call.input)
            case str() as kind if _DONE.fullmatch(kind):
                history.answer([as_text(block)])
            case kind:
                raise _unknown(place, kind, "text, thinking or tool_use")


def _add_words(history: History, role: str, blocks: Blocks, where: str) -> None:
    """Add a message of the user: the results of tools, each as a chat message of its own, and text."""
    texts: list[str] = []
    for number, block in enumerate(blocks):
        place = f"{where}[{number}]"
        if block.get("type") == "tool_result":
            result = convert(block, _ToolResult, place)
            lines = _texts(result.content or "", f"{place}.content")
            history.return_value(result.tool_use_id, ["error:", *lines] if result.is_error else lines)
        else:
            texts.append(_text(block, place, "text or tool_result"))
    if texts or not blocks:
        history.say(role, texts)


def _texts(content: str | Blocks, where: str) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [_text(block, f"{where}[{number}]", "text") for number, block in enumerate(content)]


def _text(block: dict[str, Any], place: str, expected: str) -> str:
    kind, source = block.get("type"), block.get("source")
    if kind == "text":
        return convert(block, _Text, place).text
    is_plain = kind == "document" and isinstance(source, dict) and source.get("type") == "text"
    if kind in _GIVEN or is_plain:
        return as_text(block)
    raise _unknown(place, kind, expected)


def _unknown(place: str, kind: Any, expected: str) -> ApiError:
    message = f"{place}.type is {shown(kind)}: expected {expected}, as only text is read"
    return ApiError(400, message, param=f"{place}.type", code="invalid_value")
