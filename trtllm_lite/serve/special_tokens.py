"""Refuses conversations whose texts spell special tokens, by which a user could write messages of other roles."""

from collections.abc import Iterator, Mapping
from typing import Any

from trtllm_lite.errors import shown
from trtllm_lite.runtime.text.tokenizer import Tokenizer
from trtllm_lite.serve.api_error import ApiError


def check_texts(fields: Mapping[str, Any], tokenizer: Tokenizer) -> None:
    """Raise ApiError if ``fields``, the values of a request that a chat template prints, spell a special token.

    Joined texts of parts are checked as well, since templates may print them side by side.
    """
    for name, value in fields.items():
        for text in _texts(value):
            token = tokenizer.special_token_in(text)
            if token is not None:
                message = f"{name}: a text spells the special token {shown(token)}, which this server refuses"
                raise ApiError(400, f"{message}; write it otherwise", param=name, code="invalid_value")


def _texts(value: Any) -> Iterator[str]:
    pending = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            pending += [*one, *one.values()]
        elif isinstance(one, list):
            pending += one
            yield "".join(part["text"] for part in one if isinstance(part, dict) and isinstance(part.get("text"), str))
