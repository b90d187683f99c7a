"""Fills the parameters of the C++ sampler from values that users give."""

from collections.abc import Mapping
from typing import Any

from trtllm_lite.errors import ArgumentError, shown
from trtllm_lite.request_fields.field import fields_of
from trtllm_lite.request_fields.fields import RequestFields
from trtllm_lite.runtime.core import core


def native_params(values: Mapping[str, Any]) -> Any:
    """C++ parameters with ``values``; None leaves a parameter at its neutral value."""
    native, fields = core().sampling.SamplingParams(), fields_of(RequestFields)
    for name, value in values.items():
        if value is not None:
            pairs = list(value.items()) if isinstance(value, Mapping) else value
            expected = fields[name].expected if name in fields else None
            set_param(native, name, pairs, expected or "lists of token ids")
    return native


def set_param(native: Any, name: str, value: Any, expected: str) -> None:
    """Set a C++ parameter. Raises ArgumentError for a value of another type; ``violations`` checks ranges."""
    try:
        if isinstance(value, bool):
            raise TypeError
        setattr(native, name, value)
    except (TypeError, OverflowError) as error:
        raise ArgumentError(f"{name} is {shown(value)}: expected {expected}") from error
