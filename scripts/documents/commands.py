"""Writes the reference of the command line from the commands themselves."""

import inspect
import re
from collections.abc import Iterator

import click

from documents.plain_text import cell, escaped
from documents.variants import markdown
from trtllm_lite.cli import cli

TITLES = ("option", "value", "meaning")


def cli_reference() -> str:
    """A section for each command: what it does, examples, arguments, and a table of its options."""
    return "\n".join(_sections(cli, "trtllm-lite"))


def _sections(command: click.Command, path: str) -> Iterator[str]:
    if isinstance(command, click.Group):
        if command is not cli:
            yield f"## {path}\n\n{_text(command)}"
        for name in command.list_commands(click.Context(command)):
            yield from _sections(command.commands[name], f"{path} {name}")
        return
    arguments = [param for param in command.params if isinstance(param, click.Argument)]
    usage = " ".join([path, "[OPTIONS]", *map(_place, arguments)])
    options = [param for param in command.params if isinstance(param, click.Option) and not param.hidden]
    rows = [[_names(option), _values(option), cell(_options_as_code(option.help or ""))] for option in options]
    depth = "#" * len(path.split())
    yield f"{depth} {path}\n\n```text\n{usage}\n```\n\n{_text(command)}\n{markdown(TITLES, rows)}\n"


def _place(argument: click.Argument) -> str:
    name = argument.metavar or f"{argument.name}".upper()
    return name if argument.required else f"[{name}]"


def _text(command: click.Command) -> str:
    """The help of a command; paragraphs that click does not wrap (after \\b) become blocks of text."""
    parts = []
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        lines = paragraph.split("\n")
        parts.append(
            "```text\n" + "\n".join(lines[1:]) + "\n```" if lines[0] == "\b" else escaped(_options_as_code(paragraph))
        )
    return "\n\n".join(parts) + "\n"


def _names(option: click.Option) -> str:
    return ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))


def _values(option: click.Option) -> str:
    """The values of the option, and its default or that it is required."""
    parts = []
    if not option.is_flag:
        choices = option.type.choices if isinstance(option.type, click.Choice) else _metavar(option).split("|")
        parts.append(" ".join(f"`{choice}`" for choice in choices))
    if option.multiple:
        parts.append("several times")
    if option.required:
        parts.append("required")
    elif option.show_default and option.default not in (None, False) and isinstance(option.default, str | int | float):
        parts.append(f"default `{option.default}`")
    return "; ".join(parts)


def _metavar(option: click.Option) -> str:
    if option.metavar:
        return option.metavar
    if isinstance(option.type, click.IntRange | click.FloatRange):
        return _range(option.type)
    return {"text": "TEXT", "integer": "INTEGER", "float": "NUMBER"}.get(option.type.name, option.type.name.upper())


def _range(kind: click.IntRange | click.FloatRange) -> str:
    least = "" if kind.min is None else f"{kind.min} {'<' if kind.min_open else '≤'} "
    most = "" if kind.max is None else f" {'<' if kind.max_open else '≤'} {kind.max}"
    return f"{least}NUMBER{most}"


def _options_as_code(text: str) -> str:
    """Text of a help with options in backticks."""
    return re.sub(r"(?<![`\w-])(--[a-z][a-z_]*)", r"`\1`", text)
