"""Defines the bodies of requests: their fields, with types and bounds, checked when a body is decoded.

A field that is neither listed nor in the table of ``fields`` is an error, as in OpenAI's API, so that no field is
dropped silently.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec

from trtllm_lite.common.printable import one_line
from trtllm_lite.errors import shown
from trtllm_lite.serve.api_error import ApiError
from trtllm_lite.serve.bodies.fields import check_fields
from trtllm_lite.serve.bodies.leniency import Ignored, without_ignored
from trtllm_lite.serve.bodies.prompts import PromptField, cut_prompts
from trtllm_lite.serve.turns import TURN

Body = TypeVar("Body", bound=msgspec.Struct)
Made = TypeVar("Made")
MAX_MESSAGES = 4096
"""The maximum number of messages of a conversation."""
_LARGE_BODY = 64 << 10  # bytes; smaller bodies are prepared within a millisecond


async def read(body: bytearray, make: Callable[[bytearray], Made]) -> Made:
    """The result of ``make`` for a request's body; large bodies wait for their client's turn, so that streams go on."""
    return make(body) if len(body) <= _LARGE_BODY else await TURN.get().prepare(partial(make, body))


def decode(
    body: bytearray | bytes, kind: type[Body], ignored: Ignored | None = None, max_prompt_bytes: int = sys.maxsize
) -> Body:
    """A request's body, in which a field that is null counts as left out; ``ignored`` gets the ignored fields.

    Token ids of a large body are an array, int64[len]. Raises ApiError 400, which names the field, for what is not JSON
    of this kind, and 413 if a text of a large body, or its part beside the prompts, has more than ``max_prompt_bytes``.
    """
    field: PromptField | None = getattr(kind, "PROMPTS", None)
    prompts = None
    try:
        if field is not None and len(body) > _LARGE_BODY:
            body, prompts = cut_prompts(body, field, max_prompt_bytes)
        try:
            found = msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError:
            plain = without_ignored(msgspec.json.decode(body), kind, ignored or Ignored())
            found = msgspec.convert(plain, type=kind)
        check_fields(found)
        if field is not None and prompts is not None:
            setattr(found, field.name, prompts)
        return found
    except msgspec.ValidationError as error:
        raise _invalid(error) from error
    except msgspec.DecodeError as error:
        raise ApiError(400, f"the body is not JSON: {one_line(str(error))}", code="invalid_json") from error
    except RecursionError as error:
        raise ApiError(400, "the body's JSON is nested too deeply", code="invalid_json") from error
    except UnicodeDecodeError as error:
        raise ApiError(400, "the body is not UTF-8", code="invalid_json") from error


def convert(value: Any, kind: type[Body], path: str) -> Body:
    """A part of a body that was decoded as plain JSON; ``path`` says which."""
    try:
        return msgspec.convert(value, type=kind)
    except msgspec.ValidationError as error:
        raise _invalid(error, path) from error


def check_num_messages(name: str, count: int) -> None:
    """Raise ApiError if a conversation has too many messages; ``name`` is the field that holds them."""
    if count > MAX_MESSAGES:
        message = f"{name} has {count} entries, which exceeds {MAX_MESSAGES}: send fewer"
        raise ApiError(400, message, param=name, code="invalid_value")


def _invalid(error: msgspec.ValidationError, path: str = "") -> ApiError:
    # msgspec's messages have this form: "Expected `int`, got `str` - at `$.stream_options.include_usage`"
    message, _, place = str(error).partition(" - at `$")
    where = (path + place.rstrip("`")).lstrip(".") or None
    if where == "[...]":  # msgspec's path of a value under any key
        where = None
    if message.startswith("Object contains unknown field `"):
        unknown = message.removeprefix("Object contains unknown field `").rstrip("`")
        where = f"{where}.{unknown}" if where else unknown
        return ApiError(400, f"unknown field {shown(unknown)}: leave it out", param=where, code="unknown_parameter")
    if message.startswith("Object missing required field `"):
        missing = message.removeprefix("Object missing required field `").rstrip("`")
        where = f"{where}.{missing}" if where else missing
        return ApiError(400, f"{where} is missing", param=where, code="missing_required_parameter")
    subject = where or "the body"
    code = "invalid_value" if "<=" in message or ">=" in message else "invalid_type"
    return ApiError(400, f"{subject}: {one_line(message[:1].lower() + message[1:])}", param=where, code=code)
