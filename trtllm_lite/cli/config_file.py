"""Reads the option --config of servers: YAML with their other options under their names."""

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from trtllm_lite.cli.foreign_options import options_by_name
from trtllm_lite.errors import shown
from trtllm_lite.foreign_names.serving import SERVE_FIELDS

_MAX_BYTES = 1 << 20
_NOT_THERE = ("config", "extra_llm_api_options", "debug", "help")


def _take(ctx: click.Context, parameter: click.Parameter, path: str | None) -> None:
    """Make the values of the file the defaults of the command's options, so that the command line overrides them."""
    del parameter
    if path is None:
        return
    options = {name.removeprefix("--"): option for name, option in options_by_name(ctx.command)}
    defaults: dict[str, Any] = {}
    for key, value in _flat(_read(Path(path))).items():
        option = options.get(SERVE_FIELDS.get(key, key))
        if option is None or key in _NOT_THERE:
            nearest = difflib.get_close_matches(key, [name for name in options if not options[name].hidden], n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else "--help lists them"
            raise click.UsageError(f"{path} has {shown(key)}, which is no option for such a file: {hint}", ctx)
        if str(option.name) in defaults:
            raise click.UsageError(f"{path} has {option.opts[0]} by two names: keep one", ctx)
        defaults[str(option.name)] = _as_typed(option, key, value)
    ctx.default_map = defaults


config_option = click.option(
    "--config",
    metavar="FILE",
    is_eager=True,
    expose_value=False,
    callback=_take,
    help="YAML with these options under their names; options of the command line take precedence.",
)


def _read(path: Path) -> dict[Any, Any]:
    import yaml

    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        found = yaml.safe_load(data) if len(data) <= _MAX_BYTES else None
    except OSError as error:
        raise click.FileError(str(path), error.strerror) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise click.UsageError(f"{path} is not YAML: {shown(str(error))}") from error
    if not isinstance(found, dict):
        raise click.UsageError(f"{path} holds no mapping of options of at most {_MAX_BYTES:,} bytes: see --help")
    return found


def _flat(given: Mapping[Any, Any]) -> dict[str, Any]:
    """Values by name; fields of TensorRT-LLM's configurations become ``CONFIGURATION.FIELD``. None is left out."""
    sections = {name.partition(".")[0] for name in SERVE_FIELDS}
    result: dict[str, Any] = {}
    for key, value in given.items():
        name = str(key).replace("-", "_")
        inside = value if name in sections and isinstance(value, Mapping) else {}
        result |= {f"{name}.{field}": entry for field, entry in inside.items()} or {name: value}
    return {name: value for name, value in result.items() if value is not None}


def _as_typed(option: click.Option, key: str, value: Any) -> Any:
    """A value in the form of the command line, so that its type checks it. Raises click.UsageError."""
    if option.is_flag:
        if not isinstance(value, bool):
            raise click.UsageError(f"{key} is {shown(value)}: expected true or false")
        return value
    if option.multiple:
        return [_word(entry) for entry in (value if isinstance(value, list) else [value])]
    return _word(value)


def _word(value: Any) -> str:
    return json.dumps(value) if isinstance(value, Mapping | list) else str(value)
