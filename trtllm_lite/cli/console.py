"""Prints tables for people. Commands import this module only when they run, because rich is slow to import."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trtllm_lite.common.printable import one_line

_FILE_WIDTH = 320


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on stdout; every column but the first is right-aligned. A header of empty names is left out.

    A cell that is too wide for the terminal goes on in further lines, and is never cut.
    """
    table = Table(show_header=any(header))
    for index, name in enumerate(header):
        table.add_column(name, justify="left" if index == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    console = Console()
    if not console.is_terminal:  # lines in a file may be long
        console = Console(width=_FILE_WIDTH)
    if title:
        console.print(Text(one_line(title), style="italic"))
    console.print(table)
