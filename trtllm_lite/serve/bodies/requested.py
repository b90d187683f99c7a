"""Makes structs with the fields of bodies that ``RequestFields`` declares."""

from typing import Annotated, Any

import msgspec

from trtllm_lite.request_fields.field import Field, Http, Number, fields_of
from trtllm_lite.request_fields.fields import RequestFields

REQUESTED: dict[str, tuple[str, Http]] = {
    name: (field.http.name or name, field.http)
    for name, field in fields_of(RequestFields).items()
    if field.http is not None
}
"""Maps names of SamplingParams to each field's name in bodies, and its declaration there."""
OTHER_NAMES = {
    REQUESTED[name][0] if name in REQUESTED else name: field.aliases
    for name, field in fields_of(RequestFields).items()
    if field.aliases
}
"""Maps names of fields in bodies to their names in other engines."""


def struct_of(name: str, base: type[msgspec.Struct] = msgspec.Struct, *, of_messages: bool = False) -> type:
    """A subclass of ``base`` with all these fields, or (``of_messages``) with those that /v1/messages has."""
    fields = fields_of(RequestFields)
    members = [
        (called, Annotated[http.type, _described(fields[own])], http.default)
        for own, (called, http) in REQUESTED.items()
        if http.in_messages or not of_messages
    ]
    return msgspec.defstruct(name, members, bases=(base,), kw_only=True, forbid_unknown_fields=True)


def _described(field: Field) -> msgspec.Meta:
    """The description of a field for OpenAPI. SamplingParams checks its range, with its own messages."""
    bounds: dict[str, Any] = {}
    if isinstance(field, Number):
        low = -1 if field.minus_one_is_off else 0 if field.or_zero else field.low
        bounds = {"minimum": low} | ({} if field.high is None else {"maximum": field.high})
    return msgspec.Meta(description=field.doc.replace("``", "`"), extra_json_schema=bounds or None)
