"""The input of /v1/responses: items, which become messages."""

from typing import Any, Literal

import msgspec

from trtllm_lite.errors import shown
from trtllm_lite.serve.api_error import ApiError
from trtllm_lite.serve.bodies import check_num_messages, convert
from trtllm_lite.serve.bodies.history import History, Message, as_text

_TEXT_KINDS = ("input_text", "output_text", "text", "refusal")
_DONE = (
    *("web_search_call", "file_search_call", "code_interpreter_call", "mcp_call", "mcp_list_tools", "tool_search_call"),
    *("custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call", "mcp_approval_request"),
    *("compaction", "compaction_summary"),
)
"""Items about actions of models on other servers, which become text of the assistant."""
_GIVEN = (
    *("custom_tool_call_output", "local_shell_call_output", "shell_call_output", "apply_patch_call_output"),
    *("tool_search_output", "mcp_approval_response"),
)
"""Items with clients' results of tool calls, which become text of the user."""


class _MessageItem(msgspec.Struct, kw_only=True):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[dict[str, Any]]


class _CallItem(msgspec.Struct, kw_only=True):
    call_id: str
    name: str
    arguments: str


class _OutputItem(msgspec.Struct, kw_only=True):
    call_id: str
    output: str | list[dict[str, Any]]


class _ReasoningItem(msgspec.Struct, kw_only=True):
    """``content`` is missing if only a summary or encrypted reasoning was given: templates take neither."""

    content: list[dict[str, Any]] | None = None


def messages_of(items: str | list[dict[str, Any]], instructions: str | None) -> list[Message]:
    """The messages of an input. Raises ApiError, which names the item."""
    history = History()
    if instructions is not None:
        history.say("system", [instructions])
    if isinstance(items, str):
        history.say("user", [items])
        return history.messages
    check_num_messages("input", len(items))
    for number, item in enumerate(items):
        _add(history, item, f"input[{number}]")
    return history.messages


def _add(history: History, item: dict[str, Any], where: str) -> None:
    match item.get("type", "message"):
        case "message":
            message = convert(item, _MessageItem, where)
            texts = _texts(message.content, f"{where}.content")
            if message.role == "assistant":
                history.answer(texts)
            else:
                history.say(message.role, texts)
        case "reasoning":
            thoughts = convert(item, _ReasoningItem, where).content or []
            for number, part in enumerate(thoughts):
                history.think(_text(part, ("reasoning_text",), f"{where}.content[{number}]"))
        case "function_call":
            call = convert(item, _CallItem, where)
            history.call(call.call_id, call.name, call.arguments)
        case "function_call_output":
            output = convert(item, _OutputItem, where)
            history.return_value(output.call_id, _texts(output.output, f"{where}.output"))
        case str() as kind if kind in _DONE:
            history.answer([as_text(item)])
        case str() as kind if kind in _GIVEN:
            history.say("user", [as_text(item)])
        case "item_reference":
            raise _wrong(f"{where}.type", f"{where}.type is item_reference: items are not stored; send them whole")
        case kind:
            raise _wrong(
                f"{where}.type",
                f"{where}.type is {shown(kind)}: expected message, reasoning, function_call or function_call_output",
            )


def _texts(content: str | list[dict[str, Any]], where: str) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [_text(part, _TEXT_KINDS, f"{where}[{number}]") for number, part in enumerate(content)]


def _text(part: dict[str, Any], kinds: tuple[str, ...], where: str) -> str:
    kind = part.get("type")
    text = part.get("refusal" if kind == "refusal" else "text")
    if kind not in kinds:
        raise _wrong(
            f"{where}.type", f"{where}.type is {shown(kind)}: expected {' or '.join(kinds)}, as only text is read"
        )
    if not isinstance(text, str):
        raise _wrong(f"{where}.text", f"{where}.text: expected a string")
    return text


def _wrong(param: str, message: str) -> ApiError:
    return ApiError(400, message, param=param, code="invalid_value")
