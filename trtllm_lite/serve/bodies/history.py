"""History: collects the messages of a conversation from an API whose turns are made of several parts."""

import json
from collections.abc import Sequence
from typing import Any

from trtllm_lite.serve.api_error import ApiError

Message = dict[str, Any]
_BOOKKEEPING = ("type", "id", "status", "cache_control")


class History:
    """Messages as chat templates expect them; texts become lines of a message's content.

    The parts of one turn of the assistant become one message, and so do instructions that follow one another: few
    templates take more than one message of the system.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._turn: Message | None = None

    def say(self, role: str, texts: Sequence[str]) -> None:
        """Add a message of someone other than the assistant; "developer" is OpenAI's newer name of "system"."""
        self._turn = None
        role = "system" if role == "developer" else role
        if role == "system" and self.messages and self.messages[-1]["role"] == "system":
            _add_lines(self.messages[-1], texts)
        else:
            self.messages.append({"role": role, "content": "\n".join(texts)})

    def answer(self, texts: Sequence[str]) -> None:
        """Add text of the assistant."""
        turn = self._open_turn()
        if "tool_calls" in turn:  # text after calls begins a new turn
            self._turn = None
            turn = self._open_turn()
        _add_lines(turn, texts)

    def think(self, text: str) -> None:
        """Add a thought of the assistant."""
        turn = self._open_turn()
        turn["reasoning_content"] = turn.get("reasoning_content", "") + text

    def call(self, call_id: str, name: str, arguments: dict[str, Any] | str) -> None:
        """Add a tool call by the assistant; ``arguments`` are a text if they are no JSON object."""
        function = {"name": name, "arguments": arguments}
        self._open_turn().setdefault("tool_calls", []).append({"id": call_id, "type": "function", "function": function})

    def return_value(self, call_id: str, texts: Sequence[str]) -> None:
        """Add the result of a call."""
        self._turn = None
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": "\n".join(texts)})

    def _open_turn(self) -> Message:
        if self._turn is None:
            # Some templates concatenate the content with a text, and fail without it.
            self._turn = {"role": "assistant", "content": ""}
            self.messages.append(self._turn)
        return self._turn


def as_text(item: dict[str, Any]) -> str:
    """The text of an item or block of a kind that no template knows, such as a search by another server.

    Encrypted values, which nobody here can read, and bookkeeping are left out. Raises ApiError for an item that is
    nested too deeply.
    """
    told = {name: value for name, value in item.items() if name not in _BOOKKEEPING}
    try:
        return f"[{item['type']}] {json.dumps(_readable(told), ensure_ascii=False)}"
    except RecursionError as error:
        raise ApiError(400, "the body's JSON is nested too deeply", code="invalid_json") from error


def _readable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _readable(item) for name, item in value.items() if not name.startswith("encrypted_")}
    return [_readable(item) for item in value] if isinstance(value, list) else value


def _add_lines(message: Message, texts: Sequence[str]) -> None:
    message["content"] = "\n".join([message["content"], *texts] if message["content"] else texts)
