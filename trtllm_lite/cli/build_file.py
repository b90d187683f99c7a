"""Reads build files: YAML with the options of `convert` and `build` under their names."""

import difflib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.core import ParameterSource

from trtllm_lite.cli.convert import convert
from trtllm_lite.common.vocabulary import CPU
from trtllm_lite.errors import BuildError, TrtllmLiteError, shown

if TYPE_CHECKING:
    import yaml

_MAX_BYTES = 1 << 20
_OUTPUT = "output_dir"
_NO_KEYS = ("help", "debug", "config")
_FLAGS = {"true": True, "false": False}
_REPRODUCIBLE, _ANSWERS = "reproducible", "answers"  # checks that scripts/engine_build_job.sh may carry out


@dataclass(frozen=True)
class BuildFile:
    """The options in the file ``path``: those of the section ``model``, if there is one, and of ``build``.

    Values have the form of click's default map; ``lines`` has the line of each option, counted from 1. ``checks`` are
    for the job that builds the engine: whether the build is ``reproducible``, and ``answers`` by prompt.
    """

    path: Path
    model: Mapping[str, Any] | None
    build: Mapping[str, Any]
    lines: Mapping[str, int]
    checks: Mapping[str, Any]

    def conversion(self) -> dict[str, Any]:
        """The value of every option of `convert` except the output directory. A section ``model`` is required."""
        given = {**(self.model or {}), _OUTPUT: ""}
        values = convert.make_context(str(convert.name), [], default_map=given).params
        return {name: value for name, value in values.items() if name != _OUTPUT}

    @contextmanager
    def located(self) -> Iterator[None]:
        """Prefix errors of the ``with`` block with the line of the option that they name, or else with the file.

        An error that names an option of the command line is not changed.
        """
        try:
            yield
        except click.UsageError as error:
            raise BuildError(self._at(error.format_message())) from error
        except TrtllmLiteError as error:
            raise type(error)(self._at(str(error))) from error

    def _at(self, message: str) -> str:
        name = next((word for word in re.findall(r"\w+", message) if word in self.lines), None)
        if name is None:
            return f"{self.path}: {message}"
        if click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE:
            return message
        return f"{self.path}:{self.lines[name]}: {message}"


def read_build_file(path: Path, build: click.Command) -> BuildFile:
    """Read and check ``path`` for the command ``build``. Raises BuildError, with file, line and remedy."""
    import yaml

    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise BuildError(f"cannot read the build file {path}: {error.strerror}: check the path") from error
    if len(data) > _MAX_BYTES:
        raise BuildError(f"{path} is larger than the limit of build files, {_MAX_BYTES:,} bytes: pass another")
    try:
        root = yaml.compose(data, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "reason", str(error))
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise BuildError(f"{where}: this is not YAML ({problem}): correct it") from error
    except RecursionError as error:
        raise BuildError(f"{path} is nested more deeply than a build file may be: correct it") from error
    return _Reader(path).file(root, build)


class _Reader:
    """Reads the nodes of one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[str, int] = {}

    def file(self, root: "yaml.Node | None", build: click.Command) -> BuildFile:
        import yaml

        if not isinstance(root, yaml.MappingNode):
            raise BuildError(f"{self.path}: expected the sections model and build: docs/build.md has an example")
        commands = {"model": convert, "build": build}
        found: dict[str, dict[str, Any]] = {}
        entries = self._entries(root)
        _, checks = entries.pop("checks", (None, None))
        for name, (key, node) in entries.items():
            if name not in commands:
                self._refuse(key, f"{shown(name)} is no section: expected {', '.join(commands)} and checks")
            found[name] = self._section(name, node, commands[name])
        if "model" in found and "model_dir" not in found["model"]:
            self._refuse(root, "the section model has no model_dir: add the model's directory, GGUF file or hub id")
        options = found.get("build", {})
        asked = {} if checks is None else self._checks(checks, options)
        return BuildFile(self.path, found.get("model"), options, self.lines, asked)

    def _checks(self, node: "yaml.Node", build: Mapping[str, Any]) -> dict[str, Any]:
        """Read the section ``checks`` of a file whose section ``build`` is given."""
        import yaml

        names = f"{_REPRODUCIBLE} (true or false) and {_ANSWERS} (for each prompt a text)"
        if not isinstance(node, yaml.MappingNode):
            self._refuse(node, f"expected checks to hold {names}")
        found: dict[str, Any] = {}
        for name, (key, value) in self._entries(node).items():
            if name == _REPRODUCIBLE:
                found[name] = self._flag(name, value)
            elif name != _ANSWERS:
                self._refuse(key, f"{shown(name)} is no check: expected {names}")
            elif not isinstance(value, yaml.MappingNode):
                self._refuse(value, f"{name}: expected a prompt, a colon and a text on each line")
            elif build.get("target") != [CPU]:
                self._refuse(key, f"{name}: only engines of `target: {CPU}` answer anywhere: add it, or drop {name}")
            else:
                found[name] = {prompt: self._text(name, text) for prompt, (_, text) in self._entries(value).items()}
        return found

    def _section(self, name: str, node: "yaml.Node", command: click.Command) -> dict[str, Any]:
        import yaml

        if not isinstance(node, yaml.MappingNode):
            self._refuse(node, f"expected {name} to hold options of `trtllm-lite {command.name}`, one on each line")
        options = {key: option for key, option in _options(command).items() if (name, key) != ("model", _OUTPUT)}
        values: dict[str, Any] = {}
        with click.Context(command) as context:
            for key, (key_node, value) in self._entries(node).items():
                if key not in options:
                    near = difflib.get_close_matches(key, options, n=1)
                    meant = f"did you mean {near[0]}?" if near else f"`trtllm-lite {command.name} --help` lists them"
                    self._refuse(key_node, f"{shown(key)} is no option of `trtllm-lite {command.name}`: {meant}")
                self.lines[key] = key_node.start_mark.line + 1
                values[key] = self._value(key, options[key], value)
                try:
                    options[key].type_cast_value(context, values[key])
                except click.BadParameter as error:
                    remedy = f"`trtllm-lite {command.name} --help` says what it takes"
                    self._refuse(value, f"{key}: {error.message.rstrip('.')}: {remedy}")
        return values

    def _value(self, key: str, option: click.Option, node: "yaml.Node") -> Any:
        """The value of an option as its text, or as texts if it may be repeated."""
        import yaml

        if option.is_flag:
            return self._flag(key, node)
        if option.multiple and isinstance(node, yaml.SequenceNode):
            return [self._text(key, item) for item in node.value]
        if option.multiple and isinstance(node, yaml.MappingNode):
            return [f"{name}={self._text(key, item)}" for name, (_, item) in self._entries(node).items()]
        text = self._text(key, node)
        return [text] if option.multiple else text

    def _flag(self, key: str, node: "yaml.Node") -> bool:
        import yaml

        if not isinstance(node, yaml.ScalarNode) or node.value not in _FLAGS:
            self._refuse(node, f"{key}: expected true or false")
        return _FLAGS[node.value]

    def _text(self, key: str, node: "yaml.Node") -> str:
        import yaml

        if not isinstance(node, yaml.ScalarNode) or node.tag.endswith(":null"):
            self._refuse(node, f"{key}: expected a value: add it, or remove the line")
        return str(node.value)

    def _entries(self, node: "yaml.MappingNode") -> "dict[str, tuple[yaml.Node, yaml.Node]]":
        """The key and the value of each entry of a mapping, by its name."""
        entries: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in node.value:
            name = key.value if isinstance(key.value, str) else ""
            if not name:
                self._refuse(key, "expected a name before the colon")
            if name in entries:
                first = entries[name][0].start_mark.line + 1
                self._refuse(key, f"{shown(name)} stands on line {first}, too: keep one")
            entries[name] = (key, value)
        return entries

    def _refuse(self, node: "yaml.Node", problem: str) -> NoReturn:
        raise BuildError(f"{self.path}:{node.start_mark.line + 1}: {problem}")


def _options(command: click.Command) -> dict[str, click.Option]:
    """The options of a command that a file may hold, by name."""
    return {
        str(option.name): option
        for option in command.params
        if isinstance(option, click.Option) and not option.hidden and option.name not in _NO_KEYS
    }
