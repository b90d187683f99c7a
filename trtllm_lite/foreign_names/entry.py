"""Describes one name of other engines."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

SPREAD = "*"


@dataclass(frozen=True)
class Foreign:
    """A name that other engines use and this project does not.

    A value among ``neutral`` changes nothing and is accepted. Every other value is an error that ends with ``remedy``;
    if the name is ``harmless`` (the result is the same without it), the value is accepted with a note.

    ``becomes`` is the argument or option that takes the value instead, or ``ARGUMENT.FIELD`` of a configuration. SPREAD
    means that the value is a configuration whose method ``arguments`` returns the arguments. ``values``, if not empty,
    maps the accepted values to the values here.
    """

    remedy: str
    neutral: tuple[Any, ...] = ()
    harmless: bool = False
    becomes: str | None = None
    values: Mapping[str, str] = field(default_factory=dict)

    def asks_for_nothing(self, value: Any) -> bool:
        """Whether ``value``, from a call or a command line, changes nothing.

        None, False and empty values change nothing; a list changes nothing if none of its items does.
        """
        if value is None or value is False:
            return True
        if isinstance(value, list | tuple):
            return all(self.asks_for_nothing(item) for item in value)
        return (isinstance(value, dict | set | str) and not value) or self.is_neutral(value)

    def is_neutral(self, value: Any) -> bool:
        """Whether ``value`` is among ``neutral``, where 1 stands for "1" and 1.0, too."""
        return isinstance(value, str | int | float) and _plain(value) in map(_plain, self.neutral)


def _plain(value: str | float) -> str:
    """``value`` as text that is equal for 0, 0.0 and "0", and for True and "true"."""
    text = str(value).lower()
    try:
        return f"{float(text):g}"
    except ValueError:
        return text


def same(
    names: str, remedy: str, neutral: tuple[Any, ...] = (), *, harmless: bool = False, becomes: str | None = None
) -> dict[str, Foreign]:
    """One entry for each of several ``names``, which spaces separate."""
    return {name: Foreign(remedy, neutral, harmless, becomes) for name in names.split()}


def merge(tables: Iterable[Mapping[str, Foreign]]) -> dict[str, Foreign]:
    """All entries of ``tables``; later tables override earlier ones."""
    return {name: entry for table in tables for name, entry in table.items()}
