"""Dataclasses with fields that are computed when they are first read."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Self


class ComputedLater:
    """A base of frozen dataclasses in which functions compute costly fields when they are first read.

    Costly fields can be read, compared, replaced, copied, pickled and turned into a dictionary like all others.
    """

    @classmethod
    def with_later(cls, later: Mapping[str, Callable[[], Any]], **now: Any) -> Self:
        """An instance with the fields ``now``; each other field is the result of its function in ``later``."""
        made = object.__new__(cls)
        made.__dict__.update(now, _later=later)
        return made

    def __getattr__(self, name: str) -> Any:  # called for fields that are not in __dict__ yet
        later = self.__dict__.get("_later", {})
        if name not in later:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        value = self.__dict__[name] = later[name]()
        return value

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
