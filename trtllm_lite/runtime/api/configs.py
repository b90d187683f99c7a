"""Reads configurations that callers give as objects or as dictionaries of their fields."""

from collections.abc import Mapping
from typing import Any, TypeVar

from trtllm_lite.errors import ArgumentError, shown
from trtllm_lite.runtime.session.config import KvCacheConfig, SchedulerConfig, SpeculativeConfig

_Config = TypeVar("_Config", KvCacheConfig, SchedulerConfig, SpeculativeConfig)


def config_of(name: str, kind: type[_Config], value: Any) -> _Config:
    """``value`` if it is a ``kind``, else a ``kind`` with the fields in the dictionary ``value``; None has no fields.

    Raises ArgumentError.
    """
    if value is None:
        value = {}
    if isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        raise ArgumentError(f"{name} is {shown(value)}: expected a {kind.__name__} or a dictionary of its fields")
    return kind(**{str(field): entry for field, entry in value.items()})


def speculation_of(value: Any) -> SpeculativeConfig | None:
    """The configuration that ``value`` stands for, as in :func:`config_of`; None means no speculation."""
    if isinstance(value, Mapping) and "method" not in value:
        raise ArgumentError('speculative_config names no method: expected {"method": "ngram", ...}')
    return None if value is None else config_of("speculative_config", SpeculativeConfig, value)
