"""Defines the base classes of all commands: spelling of options, and errors as one message."""

import difflib
import gc
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from trtllm_lite.cli.interrupts import INTERRUPTED, TERMINATED, Terminated, terminating
from trtllm_lite.common.printable import printable
from trtllm_lite.errors import TrtllmLiteError, shown
from trtllm_lite.foreign_names.commands import COMMANDS

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

# Modules of extras, by the name in import errors.
_BUILD = ("cyclonedx", "gguf", "huggingface_hub", "ml_dtypes", "onnx", "onnx_ir", "sentencepiece", "yaml")
_EXTRAS = dict.fromkeys(_BUILD, "build") | dict.fromkeys(("oras", "requests"), "oci")
_EXTRAS |= dict.fromkeys(("httptools", "msgspec", "prometheus_client", "uvloop"), "serve")
_EXTRAS["opentelemetry"] = "otel"


def _normalize(token: str) -> str:
    return token.replace("-", "_")


_SETTINGS = {"token_normalize_func": _normalize, "help_option_names": ["-h", "--help"]}


class Command(click.Command):
    """A command whose options may be spelled with _ or -, and whose errors are one message instead of a traceback."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["context_settings"] = {**_SETTINGS, **kwargs.get("context_settings", {})}
        super().__init__(*args, **kwargs)
        help_text = "Show the traceback of an error."
        self.params.append(click.Option(["--debug"], is_flag=True, expose_value=False, help=help_text, callback=_debug))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options; for an unknown option only options that --help lists are suggested."""
        try:
            _refuse_repeated(self.make_parser(ctx).parse_args(list(args))[2], ctx)
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            listed = [name for param in self.params if not getattr(param, "hidden", False) for name in param.opts]
            nearest = difflib.get_close_matches(error.option_name, listed, cutoff=0.75)
            raise click.NoSuchOption(error.option_name, possibilities=nearest, ctx=ctx) from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; exit code 1 on errors, 130 on Ctrl-C, 143 on SIGTERM."""
        try:
            with terminating():
                return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Terminated as end:
            click.echo(_ended("terminated", end), err=True)
            code = TERMINATED
        except KeyboardInterrupt as end:
            click.echo(_ended("interrupted", end), err=True)
            code = INTERRUPTED
        except Exception as error:  # noqa: BLE001 - the last resort: users see messages, not tracebacks
            if ctx.meta.get("debug"):
                traceback.print_exc()
            click.echo(f"Error: {printable(_message(error))}", err=True)
            code = 1
        # Here the error is gone, and with it the traceback that kept the command's engines alive. Cycles are collected
        # now: later there is no collection (see cli.main), and nanobind would report leaks.
        gc.collect()
        raise click.exceptions.Exit(code)


class Group(click.Group):
    """A group of :class:`Command`, listed in the order in which they were added, which is the order of their use."""

    command_class = Command

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["context_settings"] = {**_SETTINGS, **kwargs.get("context_settings", {})}
        super().__init__(*args, **kwargs)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the commands."""
        del ctx
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first of ``args`` names; for one of another engine the error names the replacement."""
        foreign = COMMANDS.get(_normalize(args[0]))
        if foreign is not None and self.get_command(ctx, args[0]) is None:
            raise click.UsageError(f"No such command {shown(args[0])}: {foreign.remedy}", ctx)
        return super().resolve_command(ctx, args)


def together(*options: Callable[[Decorated], Decorated]) -> Callable[[Decorated], Decorated]:
    """A decorator that adds ``options``, which --help lists in this order."""

    def decorate(function: Decorated) -> Decorated:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def _refuse_repeated(given: Sequence[click.Parameter], ctx: click.Context) -> None:
    """Raise click.UsageError for an option that takes one value and is given two, of which one would be dropped.

    A name that another engine has for an option counts as that option.
    """
    names: dict[str | None, list[str]] = {}
    for parameter in given:
        if isinstance(parameter, click.Option) and not (parameter.multiple or parameter.is_flag):
            names.setdefault(parameter.name, []).append(parameter.opts[0])
    for first, *others in names.values():
        if others:
            what = f"{first} is given {len(others) + 1} times, and takes one value"
            if set(others) != {first}:
                what = f"{first} and {others[0]} are names of one option, which takes one value"
            raise click.UsageError(f"{what}: keep one", ctx)


def _debug(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    del parameter
    ctx.meta["debug"] = value


def _ended(word: str, end: KeyboardInterrupt) -> str:
    """A description of what happened, with notes on how a later run continues."""
    return printable(": ".join([word, *getattr(end, "__notes__", [])]))


def _message(error: Exception) -> str:
    if isinstance(error, TrtllmLiteError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and error.name and error.name.split(".")[0] in _EXTRAS:
        extra = _EXTRAS[error.name.split(".")[0]]
        return f"this command needs {error.name}, which is not installed: pip install 'trtllm_lite[{extra}]'"
    if isinstance(error, MemoryError):
        return "out of memory: free some, or use smaller limits (`trtllm-lite plan` predicts what they need)"
    return f"{type(error).__name__}: {error} (unexpected; --debug shows where)"
