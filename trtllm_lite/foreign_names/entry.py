"""Describes one name of other engines."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Foreign:
    """A name of other engines that nothing here has.

    A value among ``neutral`` changes nothing and is accepted. Every other value is an error that ends with ``remedy``;
    if the name is ``harmless`` (the result is the same without it), the value is accepted with a note. ``becomes`` is
    the argument that takes the value instead, or ``ARGUMENT.FIELD`` of a configuration.
    """

    remedy: str
    neutral: tuple[Any, ...] = ()
    harmless: bool = False
    becomes: str | None = None


def same(
    names: str, remedy: str, neutral: tuple[Any, ...] = (), *, harmless: bool = False, becomes: str | None = None
) -> dict[str, Foreign]:
    """One entry for each of several ``names``, which spaces separate."""
    return {name: Foreign(remedy, neutral, harmless, becomes) for name in names.split()}


def merge(tables: Iterable[Mapping[str, Foreign]]) -> dict[str, Foreign]:
    """All entries of ``tables``; later tables override earlier ones."""
    return {name: entry for table in tables for name, entry in table.items()}
