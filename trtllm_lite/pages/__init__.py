"""Shares styles, and the notation of facts, among the project's HTML pages and its tables in notebooks."""

import hashlib
from base64 import b64encode
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from trtllm_lite.common.printable import one_line

FOLDER = Path(__file__).parent


def colors() -> str:
    """The style sheet of the colors, for light and dark."""
    return (FOLDER / "colors.css").read_text()


def digest(text: str) -> str:
    """The hash by which a content security policy allows a script or a style."""
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def fact(value: Any) -> str:
    """A value for people: yes or no for booleans, commas in large numbers, ``none`` for what is empty."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {fact(item)}" for key, item in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(fact, value)) or "none"
    if isinstance(value, int):
        return f"{value:,}"
    return "none" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def fact_table(title: str, facts: Mapping[str, Any]) -> str:
    """An HTML table of ``facts`` by name under ``title``, for ``_repr_html_``; all text is escaped."""
    rows = "".join(
        f'<tr><th style="text-align:left">{_escaped(name)}</th><td style="text-align:left">{_escaped(fact(value))}</td>'
        for name, value in facts.items()
    )
    return f"<table><caption>{_escaped(title)}</caption>{rows}</table>"


def _escaped(text: str) -> str:
    return escape(one_line(text))
