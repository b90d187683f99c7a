"""Puts the schema's texts about fields into the docstring of a class that has them."""

import inspect
import textwrap
from typing import TypeVar

from trtllm_lite.request_fields.field import fields_of, numbers_of

Declared = TypeVar("Declared", bound=type)
_PLACE = "{fields}"
_WIDTH = 116


def documented(declared: Declared) -> Declared:
    """A decorator: puts a list for each group of fields in place of ``{fields}`` in the docstring."""
    if declared.__doc__:  # python -OO removes docstrings
        groups = [
            group
            for group in reversed(declared.__mro__)
            if set(inspect.get_annotations(group)) & set(fields_of(declared))
        ]
        text = "\n\n".join(map(_listed, groups[:-1] if groups[-1] is declared else groups))
        declared.__doc__ = inspect.cleandoc(declared.__doc__).replace(_PLACE, text)
    return declared


def _listed(group: type) -> str:
    numbers = numbers_of(group)
    words = {
        "draws": _joined([name for name, number in numbers.items() if number.draws]),
        "cuts": _joined([name for name, number in numbers.items() if number.cuts]),
    }
    lines = [_filled(f"- ``{name}``: {field.doc}", "  ") for name, field in fields_of(group).items()]
    return _filled(inspect.cleandoc(group.__doc__ or "").format(**words)) + "\n\n" + "\n".join(lines)


def _filled(text: str, indent: str = "") -> str:
    return textwrap.fill(text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _joined(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
