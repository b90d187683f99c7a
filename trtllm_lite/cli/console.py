"""Tables for people; imported only by commands that run."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trtllm_lite.printable import one_line

_FILE_WIDTH = 320


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout; every column but the first is right-aligned. A header of empty names is left out.

    What a narrow terminal has no room for goes into further lines, and is never cut.
    """
    table = Table(title=Text(one_line(title)) if title else None, title_justify="left", show_header=any(header))
    for index, name in enumerate(header):
        table.add_column(name, justify="left" if index == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    console = Console()
    if not console.is_terminal:  # a file takes whole lines
        console = Console(width=_FILE_WIDTH)
    console.print(table)
