"""History: collects the messages of a conversation from an API whose turns are made of several parts."""

from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]


class History:
    """Messages as chat templates expect them; texts become lines of a message's content.

    The parts of one turn of the assistant become one message, and so do instructions that follow one another: few
    templates take more than one message of the system.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._turn: Message | None = None

    def say(self, role: str, texts: Sequence[str]) -> None:
        """Someone other than the assistant said something; "developer" is OpenAI's newer name of "system"."""
        self._turn = None
        role = "system" if role == "developer" else role
        if role == "system" and self.messages and self.messages[-1]["role"] == "system":
            _add_lines(self.messages[-1], texts)
        else:
            self.messages.append({"role": role, "content": "\n".join(texts)})

    def answer(self, texts: Sequence[str]) -> None:
        """The assistant said something."""
        turn = self._open_turn()
        if "tool_calls" in turn:  # what is said behind calls is a turn of its own
            self._turn = None
            turn = self._open_turn()
        _add_lines(turn, texts)

    def think(self, text: str) -> None:
        """The assistant thought something."""
        turn = self._open_turn()
        turn["reasoning_content"] = turn.get("reasoning_content", "") + text

    def call(self, call_id: str, name: str, arguments: dict[str, Any]) -> None:
        """The assistant called a function."""
        function = {"name": name, "arguments": arguments}
        self._open_turn().setdefault("tool_calls", []).append({"id": call_id, "type": "function", "function": function})

    def return_value(self, call_id: str, texts: Sequence[str]) -> None:
        """A call gave something."""
        self._turn = None
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": "\n".join(texts)})

    def _open_turn(self) -> Message:
        if self._turn is None:
            # Some templates add the content to a text, and cannot do without it.
            self._turn = {"role": "assistant", "content": ""}
            self.messages.append(self._turn)
        return self._turn


def _add_lines(message: Message, texts: Sequence[str]) -> None:
    message["content"] = "\n".join([message["content"], *texts] if message["content"] else texts)
