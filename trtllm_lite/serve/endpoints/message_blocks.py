"""Defines BlockEncoder: the content blocks of a message, and the events that report them."""

from typing import Any

import msgspec

from trtllm_lite.serve.parts import ApiEvent, Part, PartEncoder

_DELTAS = {"text": ("text_delta", "text"), "reasoning": ("thinking_delta", "thinking")}
_NO_INPUT = msgspec.Raw(b"{}")


class BlockEncoder(PartEncoder):
    """Turns each part into a content block: text, thinking, or the use of a tool.

    A call that was cut off has no complete input, so a whole message leaves its block out, and its stop reason is not
    ``tool_use``. A stream has already reported the beginning of the block.
    """

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[dict[str, Any]] = []
        """The complete blocks so far."""

    def _begin(self, part: Part) -> list[ApiEvent]:
        return [{"type": "content_block_start", "index": part.number, "content_block": _block(part, _NO_INPUT)}]

    def _piece(self, part: Part, text: str) -> ApiEvent:
        kind, name = _DELTAS.get(part.kind, ("input_json_delta", "partial_json"))
        return {"type": "content_block_delta", "index": part.number, "delta": {"type": kind, name: text}}

    def _end(self, part: Part) -> list[ApiEvent]:
        if part.kind != "call":
            self.blocks.append(_block(part, _NO_INPUT))
        elif part.is_whole:
            self.blocks.append(_block(part, msgspec.Raw(part.text.encode())))
        return [{"type": "content_block_stop", "index": part.number}]


def _block(part: Part, arguments: msgspec.Raw) -> dict[str, Any]:
    match part.kind:
        case "text":
            return {"type": "text", "text": part.text}
        case "reasoning":
            return {"type": "thinking", "thinking": part.text, "signature": ""}
        case "call":
            call_id, name = ("", "") if part.call is None else (part.call.id, part.call.name)
            return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}
