"""History: collects the messages of a conversation from an API whose turns are made of several parts."""

from typing import Any

Message = dict[str, Any]


class History:
    """Messages as chat templates expect them: the parts of one turn of the assistant become one message."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._turn: Message | None = None

    def say(self, role: str, content: Any) -> None:
        """A message of another role than the assistant's."""
        self._turn = None
        self.messages.append({"role": role, "content": content})

    def answer(self, texts: list[str]) -> None:
        """The assistant said something, in lines."""
        turn = self._open_turn()
        if "tool_calls" in turn:  # what is said behind calls is a turn of its own
            self._turn = None
            turn = self._open_turn()
        turn["content"] = "\n".join([turn["content"], *texts] if turn["content"] else texts)

    def think(self, text: str) -> None:
        """The assistant thought something."""
        turn = self._open_turn()
        turn["reasoning_content"] = turn.get("reasoning_content", "") + text

    def call(self, call_id: str, name: str, arguments: Any) -> None:
        """The assistant called a function; ``arguments`` is an object."""
        turn = self._open_turn()
        function = {"name": name, "arguments": arguments}
        turn.setdefault("tool_calls", []).append({"id": call_id, "type": "function", "function": function})

    def return_value(self, call_id: str, content: Any) -> None:
        """What a call gave."""
        self._turn = None
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": content})

    def _open_turn(self) -> Message:
        if self._turn is None:
            # Some templates add the content to a text, and cannot do without it.
            self._turn = {"role": "assistant", "content": ""}
            self.messages.append(self._turn)
        return self._turn


def text_part(text: str) -> Message:
    """A part of a message's content."""
    return {"type": "text", "text": text}
