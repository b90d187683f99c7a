"""Writes the reference of the fields of requests, from their schema."""

import dataclasses

from documents.plain_text import cell
from documents.variants import markdown
from trtllm_lite import SamplingParams
from trtllm_lite.request_fields.field import Field, Number, fields_of

TITLES = ("field", "default", "range", "HTTP", "ModelRunner", "generate", "checkpoints", "elsewhere called", "meaning")


def requests_reference() -> str:
    """A row for each field of SamplingParams."""
    defaults = {field.name: field.default for field in dataclasses.fields(SamplingParams)}
    rows = [_row(name, field, defaults[name]) for name, field in fields_of(SamplingParams).items()]
    return markdown(TITLES, rows) + "\n"


def _row(name: str, field: Field, default: object) -> list[str]:
    http = "" if field.http is None else f"`{field.http.name or name}`"
    return [
        f"`{name}`",
        f"`{default!r}`",
        _range(field) if isinstance(field, Number) else "",
        http,
        "" if field.runner is None else f"`{field.runner}`",
        "" if field.option is None else f"`--{field.runner or name}`",
        "yes" if field.in_checkpoints else "",
        ", ".join(f"`{alias}`" for alias in field.aliases),
        cell(field.doc.replace("``", "`")),
    ]


def _range(number: Number) -> str:
    """The range of a number, and other values that it may have."""
    bounds = f"{number.low} or more" if number.high is None else f"{number.low} to {number.high}"
    return bounds + (", 0" if number.or_zero else "") + (", -1" if number.minus_one_is_off else "")
