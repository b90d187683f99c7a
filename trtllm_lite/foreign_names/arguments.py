"""Reads arguments of calls that other engines have and this runtime does not, by tables.

An argument with a neutral value (``device_ids=None``) is accepted, so that existing calls work. Any other value is an
error that names the replacement of the argument. An argument that no engine has is an error as well.
"""

import difflib
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from inspect import signature
from typing import Any, TypeVar, cast

from trtllm_lite.errors import ArgumentError, shown
from trtllm_lite.foreign_names.entry import SPREAD, Foreign

Made = TypeVar("Made")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def takes_foreign_names(function: str, table: Mapping[str, Foreign]) -> Callable[[Decorated], Decorated]:
    """A decorator: lets the method that messages call ``function`` take the arguments of ``table`` as well.

    Arguments with a meaning here are passed on under this project's names. Arguments that change nothing are dropped,
    with a warning unless the value is neutral. Raises ArgumentError for all other arguments that the method does not
    take.
    """

    def decorate(method: Decorated) -> Decorated:
        _, *named = signature(method).parameters.values()
        own = {parameter.name: None for parameter in named}

        @wraps(method)
        def call(*arguments: Any, **given: Any) -> Any:
            if given.keys() <= own.keys():
                return method(*arguments, **given)
            return method(*arguments, **own_arguments(function, given, table, list(own)))

        return cast(Decorated, call)

    return decorate


def takes_foreign_fields(table: Mapping[str, Foreign]) -> Callable[[type[Made]], type[Made]]:
    """A decorator of a class: applies :func:`takes_foreign_names` to its constructor."""

    def decorate(made: type[Made]) -> type[Made]:
        made.__init__ = takes_foreign_names(made.__name__, table)(made.__init__)  # type: ignore[method-assign]
        return made

    return decorate


def own_arguments(
    function: str, given: Mapping[str, Any], table: Mapping[str, Foreign], supported: list[str]
) -> dict[str, Any]:
    """Replace foreign names in ``given`` by the arguments that they stand for. Raises ArgumentError.

    ``supported`` are the arguments of ``function``.
    """
    result = {name: value for name, value in given.items() if name in supported}
    for name, value in given.items():
        if name in supported:
            continue
        entry = table.get(name)
        if entry is None or not (entry.harmless or entry.becomes):
            reject_unsupported(function, {name: value}, table, supported)
        elif entry.becomes and not (value is None or entry.is_neutral(value)):
            for own, own_value in _becomes(function, name, entry, value).items():
                _give(function, result, name, own, own_value)
            if entry.harmless:
                warnings.warn(f"{function}: {name}={shown(value)}: {entry.remedy}", stacklevel=3)
        elif not entry.becomes and not entry.asks_for_nothing(value):
            warnings.warn(f"{function}: {name}={shown(value)} changes nothing: {entry.remedy}", stacklevel=3)
    return result


def _becomes(function: str, name: str, entry: Foreign, value: Any) -> Mapping[str, Any]:
    """The arguments, by name, that ``value`` stands for. Raises ArgumentError."""
    if entry.becomes != SPREAD and (not entry.values or str(value) in entry.values):
        return {str(entry.becomes): entry.values.get(str(value), value)}
    if not hasattr(value, "arguments"):
        raise ArgumentError(f"{function} does not take {name}={shown(value)}: {entry.remedy}")
    arguments: Mapping[str, Any] = value.arguments()
    return arguments


def _give(function: str, arguments: dict[str, Any], name: str, own: str, value: Any) -> None:
    """Put ``value`` into its argument. Raises ArgumentError if the argument is given already."""
    argument, _, field = own.partition(".")
    before = arguments.get(argument)
    if not field and before is None:
        arguments[argument] = value
    elif field and (before is None or (isinstance(before, Mapping) and field not in before)):
        arguments[argument] = {**(before or {}), field: value}
    else:
        raise ArgumentError(f"{function}: {name} is {own} here, and {argument} is given, too: set {own} alone")


def reject_unsupported(
    function: str, given: Mapping[str, Any], table: Mapping[str, Foreign], supported: Iterable[str]
) -> None:
    """Raise ArgumentError for the first of ``given`` that is unknown, or unsupported and not neutral."""
    for name, value in given.items():
        entry = table.get(name)
        if entry is None:
            raise ArgumentError(_unknown(function, name, list(supported)))
        if not entry.asks_for_nothing(value):
            raise ArgumentError(f"{function} does not take {name}={shown(value)}: {entry.remedy}")


def _unknown(function: str, name: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"known: {', '.join(sorted(known))}"
    return f"{function} has no argument {shown(name)}: {hint}"
