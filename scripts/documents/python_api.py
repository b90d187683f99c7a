"""Writes the reference of the Python API from signatures and docstrings."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import trtllm_lite
from documents.plain_text import escaped

# Names that users import besides ``trtllm_lite.__all__``, and classes that their methods return.
MODULES = {
    "trtllm_lite": trtllm_lite.__all__,
    "trtllm_lite.runtime": ("ModelRunner",),
    "trtllm_lite.runtime.api.generation": ("Generation",),
    "trtllm_lite.runtime.api.request_output": ("RequestMetrics", "Logprob"),
    "trtllm_lite.runtime.session.stats": ("Stats", "Speculation", "Latencies"),
    "trtllm_lite.runtime.session.experts": ("ExpertCounts",),
    "trtllm_lite.convert": ("convert_checkpoint",),
    "trtllm_lite.builder": ("BuildLimits", "build_engine", "plan_memory"),
    "trtllm_lite.evaluation": ("Evaluation", "evaluate"),
    "trtllm_lite.errors": ("TrtllmLiteError",),
}
# Members that only other modules of the project use.
_INTERNAL = ("handles", "params", "session", "encoder", "since")
_FIELDS_ALONE = ("SamplingParams", "GuidedDecodingParams", "BuildLimits")


def python_reference() -> str:
    """A section for each module, with its classes and functions."""
    parts = []
    for name, exported in MODULES.items():
        module = importlib.import_module(name)
        parts.append(f"## {name}\n")
        parts += [part for entry in sorted(exported) for part in _entry(getattr(module, entry), entry)]
    return "\n".join(parts)


def _entry(found: Any, name: str) -> Iterator[str]:
    signature = _signature(found, name)
    yield f"### {name}\n\n```text\n{signature}\n```\n\n{_markdown(found)}\n"
    if isinstance(found, type) and name not in _FIELDS_ALONE:
        for member, value in vars(found).items():
            if member.startswith("_") or member in _INTERNAL:
                continue
            function = _function(value)
            if function is None or not function.__doc__:
                continue
            shown = f"{name}.{member}" if isinstance(value, property) else _signature(function, f"{name}.{member}")
            yield f"#### {name}.{member}\n\n```text\n{shown}\n```\n\n{_markdown(function)}\n"


def _function(value: Any) -> FunctionType | None:
    """The function of a method or property; None for other members."""
    found = getattr(value, "fget", None) or getattr(value, "__func__", None) or getattr(value, "func", value)
    found = inspect.unwrap(found) if callable(found) else None
    return found if isinstance(found, FunctionType) else None


def _signature(found: Any, name: str) -> str:
    """The call as in the source; a long call has an argument per line."""
    node = _definition(found)
    if isinstance(node, ast.ClassDef):
        methods = {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}
        if "__init__" not in methods:
            return _call(name, [f"{part}" for part in _fields(found)])
        node = methods["__init__"]
    arguments = _arguments(node.args)
    return _call(name, arguments, ast.unparse(node.returns) if node.returns and node.name != "__init__" else "")


def _definition(found: Any) -> Any:
    source = inspect.getsource(inspect.unwrap(found))
    return ast.parse(inspect.cleandoc("\n" + source)).body[0]


def _fields(found: type) -> Iterator[str]:
    """The fields of a dataclass; those of the C++ side have no annotation in Python."""
    for declared in reversed([one for one in found.__mro__ if one.__module__.startswith("trtllm_lite.")]):
        for node in _definition(declared).body:
            if isinstance(node, ast.AnnAssign):
                yield ast.unparse(_plain(node))


def _plain(node: ast.AnnAssign) -> ast.AnnAssign:
    """A field with its bare type in place of an ``Annotated`` one."""
    kind = node.annotation
    if isinstance(kind, ast.Subscript) and ast.unparse(kind.value) == "Annotated" and isinstance(kind.slice, ast.Tuple):
        node.annotation = kind.slice.elts[0]
    return node


def _arguments(given: ast.arguments) -> list[str]:
    """Arguments without ``self``; keyword-only ones follow a star."""
    places = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(places) - len(given.defaults)) + list(given.defaults)
    texts = [_argument(*pair) for pair in zip(places, defaults, strict=True) if pair[0].arg not in ("self", "cls")]
    if given.vararg:
        texts.append(f"*{ast.unparse(given.vararg)}")
    elif given.kwonlyargs:
        texts.append("*")
    texts += [_argument(*pair) for pair in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return [*texts, *([f"**{ast.unparse(given.kwarg)}"] if given.kwarg else [])]


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(argument) + ("" if default is None else f" = {ast.unparse(default)}")


def _call(name: str, arguments: list[str], result: str = "") -> str:
    end = f" -> {result}" if result else ""
    line = f"{name}({', '.join(arguments)}){end}"
    if len(line) <= 100:
        return line
    return "\n".join([f"{name}(", *(f"    {argument}," for argument in arguments), f"){end}"])


def _markdown(found: Any) -> str:
    """The docstring as Markdown: double backticks and roles of Sphinx become code, and lists get a line before them."""
    text = inspect.getdoc(inspect.unwrap(found)) or ""
    text = re.sub(r":\w+:`([^`]+)`", r"`\1`", text).replace("``", "`")
    lines = []
    for line in text.split("\n"):
        if line.startswith("- ") and lines and lines[-1] and not lines[-1].startswith(("- ", "  ")):
            lines.append("")
        lines.append("  " + line if line.startswith("  ") else line)
    return escaped("\n".join(lines))
