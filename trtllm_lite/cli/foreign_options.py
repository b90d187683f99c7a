"""Adds hidden options of other engines: some are other names of a command's options, the rest print their remedies."""

import copy
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import click

from trtllm_lite.foreign_names.entry import Foreign
from trtllm_lite.foreign_names.environment import VARIABLES

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_NO_VALUE = "true"  # the value of an option that was given without one


class Renamed(click.Option):
    """Another engine's name of the option ``becomes`` of the same command, which takes the value."""

    def __init__(self, *arguments: Any, becomes: str, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.becomes = becomes

    def own(self, command: click.Command) -> click.Option:
        """The option of ``command`` that takes the value."""
        (found,) = (param for param in command.params if f"--{self.becomes}" in param.opts)
        assert isinstance(found, click.Option)
        return found

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Let the parser take this name as it takes the option's own."""
        other = copy.copy(self.own(ctx.command))
        other.opts, other.secondary_opts = self.opts, []
        other.add_to_parser(parser, ctx)


def options_by_name(command: click.Command) -> Iterator[tuple[str, click.Option]]:
    """Each name of an option of ``command``, other engines' among them, and the option that takes the value."""
    for param in command.params:
        if isinstance(param, click.Option):
            own = param.own(command) if isinstance(param, Renamed) else param
            yield from ((name, own) for name in param.opts)


def foreign_options(table: Mapping[str, Foreign]) -> Callable[[Decorated], Decorated]:
    """A decorator: adds the names of ``table`` as hidden options.

    Names that become an option of the command are other names of this option. The others accept their neutral values
    and explain every other value.
    """

    def decorate(function: Decorated) -> Decorated:
        for name, entry in table.items():
            function = _option(spelled(name), entry)(function)
        return function

    return decorate


def spelled(name: str) -> str:
    """A name of a table in the form of the command line; names with one dash have it in the table."""
    return name if name.startswith("-") else f"--{name}"


def check_variables(*, has_keys: bool) -> None:
    """Print a note for each environment variable of other engines that is set, without its value.

    Raises click.UsageError for variables with API keys, unless the server ``has_keys``.
    """
    for name, entry in VARIABLES.items():
        if not os.environ.get(name):
            continue
        if entry.harmless:
            click.echo(f"Note: the variable {name} changes nothing: {entry.remedy}", err=True)
        elif not has_keys:
            raise click.UsageError(f"the variable {name} is set, and is not read: {entry.remedy}, or unset it")


def _option(name: str, entry: Foreign) -> Callable[[Decorated], Decorated]:
    if entry.becomes:
        return click.option(name, cls=Renamed, becomes=entry.becomes, hidden=True, expose_value=False)
    callback = _explain(name, entry)
    return click.option(name, hidden=True, expose_value=False, is_flag=False, flag_value=_NO_VALUE, callback=callback)


def _explain(name: str, entry: Foreign) -> Callable[..., None]:
    def callback(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
        del parameter
        if value is None or entry.is_neutral(value):
            return
        given = name if value == _NO_VALUE else f"{name} {value}"
        if not entry.harmless:
            raise click.UsageError(f"{given}: {entry.remedy}", ctx)
        click.echo(f"Note: {given} changes nothing: {entry.remedy}", err=True)

    return callback
