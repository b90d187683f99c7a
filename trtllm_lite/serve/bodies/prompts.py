"""Cuts prompts out of large bodies: what is decoded in one piece holds up all streams meanwhile."""

from typing import Any, NamedTuple

import msgspec

from trtllm_lite.runtime.core import core
from trtllm_lite.serve.api_error import ApiError

_NO_PROMPTS = b"[]"


class PromptField(NamedTuple):
    """The field of a body that holds a text, token ids, or a list of at most ``most`` of these.

    ``entries`` is the noun for the list's members in messages.
    """

    name: str
    entries: str
    most: int

    def check_count(self, count: int) -> None:
        """Raise ApiError 400 unless ``count`` prompts may be in the field."""
        if not 1 <= count <= self.most:
            message = f"{self.name} has {count} {self.entries}: expected 1 to {self.most}"
            raise ApiError(400, message, param=self.name, code="invalid_value")


def cut_prompts(body: bytearray | bytes, field: PromptField, max_bytes: int) -> tuple[bytes, Any]:
    """``body`` with an empty list in place of its prompts, and the prompts: texts, or int64[len] arrays of token ids.

    Each text, and the rest of the body, may have ``max_bytes`` bytes. Raises ApiError 413 for more, 400 for too many
    prompts; DecodeError for texts that are no JSON.
    """
    found = core().find_prompts(body, field.name, field.most)
    begin, end, is_list, count, prompts = found or (0, 0, True, 1, [])
    beside = len(body) - (end - begin)
    if beside > max_bytes:
        raise _too_large(f"the body has {beside} bytes beside the texts or token ids of {field.name}", max_bytes)
    if found is None:
        return bytes(body), None
    if is_list:
        field.check_count(count)
    with memoryview(body) as view:
        rest = b"".join([view[:begin], _NO_PROMPTS, view[end:]])
        made = [
            _decoded(view[slice(*prompt)], field, max_bytes) if isinstance(prompt, tuple) else prompt
            for prompt in prompts
        ]
    return rest, made if is_list else made[0]


def _decoded(text: memoryview, field: PromptField, max_bytes: int) -> str:
    if len(text) > max_bytes:
        raise _too_large(f"{field.name} has a text of {len(text)} bytes", max_bytes, field.name)
    return msgspec.json.decode(text, type=str)


def _too_large(what: str, max_bytes: int, param: str | None = None) -> ApiError:
    message = f"{what}, which exceeds the {max_bytes} that a prompt of max_input_len tokens can have: send less"
    return ApiError(413, message, param=param, code="body_too_large")
