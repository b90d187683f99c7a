"""Prints the differences between two engines for people; layers that differ alike are listed once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trtllm_lite.common.printable import one_line
from trtllm_lite.engine.inspect_text import exact_bytes
from trtllm_lite.engine.records import json_text
from trtllm_lite.engine.repeated import pattern

if TYPE_CHECKING:
    from trtllm_lite.engine.difference import Comparison, Difference

_ROWS_OF_A_SECTION = 8
_FEW_PARTS = 3  # a longer list is abbreviated in a cell


def print_comparison(found: Comparison, console: Console) -> None:
    """Print a table for each section with its first differences, and last whether results can differ, and why."""
    if not found.differences:
        _print_line(console, f"{found.a} and {found.b} do not differ")
        return
    _print_line(console, f"A is {found.a}")
    _print_line(console, f"B is {found.b}")
    for section, differences in groupby(found.differences, key=lambda difference: difference.section):
        _print_section(console, section, list(differences))
    changing = dict.fromkeys(item.section for item in found.differences if item.changes_results)
    if changing:
        _print_line(console, f"What differs can change results (exit code 3): {', '.join(changing)}")
    else:
        _print_line(console, "What differs changes no results (exit code 0)")


def _print_line(console: Console, text: str) -> None:
    console.print(Text(one_line(text)), soft_wrap=True)


def _print_section(console: Console, section: str, differences: list[Difference]) -> None:
    title = section if any(item.changes_results for item in differences) else f"{section} (changes no results)"
    table = Table(title=Text(title), title_justify="left", box=None, padding=(0, 2, 0, 2))
    for name in ("", "A", "B"):
        table.add_column(name, overflow="fold")
    rows = _alike(differences)
    for alike in rows[:_ROWS_OF_A_SECTION]:
        more = f" and {len(alike) - 1} like it" if len(alike) > 1 else ""
        cells = (f"{alike[0].name}{more}", *_cells(alike[0]))
        table.add_row(*(Text("\n".join(map(one_line, cell.split("\n")))) for cell in cells))
    console.print(table)
    hidden = sum(len(alike) for alike in rows[_ROWS_OF_A_SECTION:])
    if hidden:
        _print_line(console, f"    and {hidden} more; --json lists all")


def _alike(differences: Iterable[Difference]) -> list[list[Difference]]:
    """Group differences whose names are the same except for the number of the layer."""
    rows: dict[tuple[str, bool, bool], list[Difference]] = {}
    for item in differences:
        rows.setdefault((pattern(item.name), item.a is None, item.b is None), []).append(item)
    return list(rows.values())


def _cells(difference: Difference) -> tuple[str, str]:
    a, b = difference.a, difference.b
    if difference.section == "memory":
        return _memory(a), _memory(b)
    if isinstance(a, str) and isinstance(b, str):
        return _apart(a.split(", "), b.split(", ")), _apart(b.split(", "), a.split(", "))
    return _cell(_short(a)), _cell(_short(b))


def _memory(size: Any) -> str:
    return exact_bytes(size) if isinstance(size, int) else _cell(size)


def _apart(parts: Sequence[str], others: Sequence[str]) -> str:
    """The parts of a long list that ``others`` lack, with dots for common parts."""
    if max(len(parts), len(others)) <= _FEW_PARTS or parts == others:
        return ", ".join(parts)
    own = [part for part in parts if part not in others]
    return ", ".join(own if len(own) == len(parts) else ("…", *own))


def _short(value: Any) -> Any:
    """``value``, shortened to the first and last parts if it is a long list that only one engine has."""
    if not isinstance(value, str) or value.count(", ") < 2 * _FEW_PARTS:
        return value
    parts = value.split(", ")
    return ", ".join((*parts[:_FEW_PARTS], "…", parts[-1]))


def _cell(value: Any) -> str:
    """A value as text; each text of a list is on its own line."""
    if value is None:
        return "none"
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return "\n".join(value)
    return value if isinstance(value, str) else json_text(value)
