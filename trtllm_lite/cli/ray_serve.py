"""Defines the application of Ray Serve, and parses its arguments like the options of a command.

    serve run trtllm_lite.cli.ray_serve:app engine=/srv/engine num_replicas=2 api_key_file=/srv/keys.txt

Arguments are the options of ``trtllm-lite serve``, but for its address.
"""

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from trtllm_lite.cli.foreign_options import options_by_name
from trtllm_lite.cli.option_types import COUNT
from trtllm_lite.cli.server_options import server_options
from trtllm_lite.errors import ArgumentError, shown

if TYPE_CHECKING:
    from ray.serve import Application

_ENGINE = "engine"


@click.command(add_help_option=False)
@click.argument(_ENGINE, metavar="engine=[NAME=]DIR")
@click.option("--num_replicas", type=COUNT, default=1)
@server_options
def _ray_serve(**_: Any) -> None:
    """Define options only; the command that runs is Ray Serve's own."""


def app(arguments: dict[str, Any]) -> "Application":
    """The application of an engine, for ``serve run`` and for Ray Serve's configuration files.

    ``arguments`` are ``engine``, the directory of an engine on each node, ``num_replicas``, and the options of the
    server by name; options that may be given several times are lists. Raises ArgumentError for arguments that are
    missing, unknown, or not possible with several replicas.
    """
    from trtllm_lite.serve.ray import application_of

    return application_of(*parsed(arguments))


def parsed(arguments: Mapping[str, Any]) -> tuple[str, int, dict[str, Any]]:
    """The engine, the number of replicas, and the options of the server. Raises ArgumentError."""
    given = dict(arguments)
    engine = given.pop(_ENGINE, None)
    if not isinstance(engine, str):
        raise ArgumentError(f"engine is {shown(engine)}: expected the directory of an engine")
    flags = {name for name, option in options_by_name(_ray_serve) if option.is_flag}
    words = [word for name, value in given.items() for word in _words(f"--{name}", value, flags)]
    try:
        options = _ray_serve.make_context("app", [*words, "--", engine]).params
    except click.UsageError as error:
        raise ArgumentError(error.format_message()) from error
    return options.pop(_ENGINE), options.pop("num_replicas"), options


def _words(option: str, value: Any, flags: set[str]) -> Iterator[str]:
    """The words of an option on a command line."""
    if option in flags:
        if str(value).lower() not in ("true", "false"):
            raise ArgumentError(f"{option.removeprefix('--')} is {shown(value)}: expected true or false")
        if str(value).lower() == "true":
            yield option
        return
    for each in value if isinstance(value, list) else [value]:
        yield f"{option}={json.dumps(each) if isinstance(each, Mapping) else each}"
