"""Renders chat templates as a program of its own: it reads requests from stdin and writes answers to stdout.

``template_process`` starts it as ``python template_worker.py MEMORY_BYTES CPU_SECONDS MAX_CHARS NICENESS``. Requests
and answers are lines of JSON. A request has ``source`` (the template) and ``names`` (its variables). An answer has
``text``, or the reason why there is none: ``invalid`` (the template itself is wrong) or ``refused`` (it does not accept
these names). A template that computes too long ends the process; one that needs too much memory gets a MemoryError or
ends the process.

The program imports nothing of this package, so that it starts at once.
"""

import datetime
import json
import os
import resource
import signal
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_MAX_MESSAGE_CHARS = 1000


def main() -> None:
    """Answer requests until stdin ends."""
    memory_bytes, cpu_seconds, max_chars, niceness = map(int, sys.argv[1:])
    os.nice(niceness)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    for request in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)  # SIGPROF ends the process then
        answer = json.dumps(_answer(json.loads(request), max_chars)).encode()
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(answer + b"\n")
        sys.stdout.buffer.flush()


def _answer(request: Mapping[str, Any], max_chars: int) -> dict[str, str]:
    try:
        template = _compiled(request["source"])
    except Exception as error:  # noqa: BLE001 - compilation of a hostile template raises anything
        return {"invalid": _message(error)}
    try:
        return {"text": _printed(template, request["names"], max_chars)}
    except Exception as error:  # noqa: BLE001 - rendering a hostile template raises anything, too
        return {"refused": _message(error)}


def _printed(template: jinja2.Template, names: Mapping[str, Any], max_chars: int) -> str:
    pieces: list[str] = []
    size = 0
    for piece in template.generate(names):
        size += len(piece)
        if size > max_chars:
            raise jinja2.TemplateRuntimeError(f"it prints more than {max_chars:,} characters")
        pieces.append(piece)
    return "".join(pieces)


def _message(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "it needs too much memory"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return (str(error) or type(error).__name__)[:_MAX_MESSAGE_CHARS]


@lru_cache(maxsize=4)
def _compiled(source: str) -> jinja2.Template:
    return _environment().from_string(source)


def _environment() -> jinja2.Environment:
    """Jinja as Hugging Face sets it up for chat templates."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda format: datetime.datetime.now().strftime(format)
    return environment


class _GenerationTag(jinja2.ext.Extension):
    """``{% generation %}…{% endgeneration %}`` marks the assistant's words for training; here it has no effect."""

    tags = {"generation"}  # noqa: RUF012 - the attribute Jinja reads

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML escapes: the prompt is not a web page."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


if __name__ == "__main__":
    main()
