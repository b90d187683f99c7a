"""Defines ItemEncoder: the items of a response, and the events that report them."""

import secrets
from typing import Any

from trtllm_lite.serve.parts import ApiEvent, Part, PartEncoder

_TEXT_EVENTS = {"text": "response.output_text", "reasoning": "response.reasoning_text"}


class ItemEncoder(PartEncoder):
    """Turns each part into an item of the response's output: a message, reasoning, or a function call."""

    def __init__(self) -> None:
        super().__init__()
        self.items: list[dict[str, Any]] = []
        """The items that have ended."""
        self._id = ""

    def _begin(self, part: Part) -> list[ApiEvent]:
        prefix = {"text": "msg", "reasoning": "rs", "call": "fc"}[part.kind]
        self._id = f"{prefix}_{secrets.token_hex(12)}"
        item = self._item(part, "in_progress")
        added = {"type": "response.output_item.added", "output_index": part.number, "item": item}
        if part.kind == "call":
            return [added]
        item["content"] = []
        return [added, {"type": "response.content_part.added", **self._place(part), "part": _content(part)}]

    def _piece(self, part: Part, text: str) -> ApiEvent:
        if part.kind == "call":
            return {"type": "response.function_call_arguments.delta", **self._place(part), "delta": text}
        told = {"type": f"{_TEXT_EVENTS[part.kind]}.delta", **self._place(part), "delta": text}
        return {**told, "logprobs": []} if part.kind == "text" else told

    def _end(self, part: Part) -> list[ApiEvent]:
        item = self._item(part, "completed" if part.is_whole else "incomplete")
        self.items.append(item)
        done = {"type": "response.output_item.done", "output_index": part.number, "item": item}
        return [*self._content_done(part), done]

    def _content_done(self, part: Part) -> list[ApiEvent]:
        """The events for the complete content of an item; a call that was cut off is never reported as done."""
        if part.kind == "call":
            told = {"type": "response.function_call_arguments.done", **self._place(part), "name": _name(part)}
            return [{**told, "arguments": part.text}] if part.is_whole else []
        told = {"type": f"{_TEXT_EVENTS[part.kind]}.done", **self._place(part), "text": part.text}
        if part.kind == "text":
            told["logprobs"] = []
        return [told, {"type": "response.content_part.done", **self._place(part), "part": _content(part)}]

    def _place(self, part: Part) -> dict[str, Any]:
        place: dict[str, Any] = {"item_id": self._id, "output_index": part.number}
        return place if part.kind == "call" else {**place, "content_index": 0}

    def _item(self, part: Part, status: str) -> dict[str, Any]:
        item: dict[str, Any] = {"id": self._id, "status": status}
        match part.kind:
            case "text":
                return {**item, "type": "message", "role": "assistant", "content": [_content(part)]}
            case "reasoning":
                return {**item, "type": "reasoning", "summary": [], "content": [_content(part)]}
            case "call":
                call_id = "" if part.call is None else part.call.id
                call = {"call_id": call_id, "name": _name(part), "arguments": part.text}
                return {**item, "type": "function_call", **call}


def _content(part: Part) -> dict[str, Any]:
    if part.kind == "reasoning":
        return {"type": "reasoning_text", "text": part.text}
    return {"type": "output_text", "text": part.text, "annotations": [], "logprobs": []}


def _name(part: Part) -> str:
    return "" if part.call is None else part.call.name
