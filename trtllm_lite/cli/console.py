"""Progress, tables and numbers for people; imported only by commands that run."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from trtllm_lite.printable import one_line

Report = Callable[[str, int, int], None]
_FILE_WIDTH = 320


@contextmanager
def progress_bars() -> Iterator[Report]:
    """Yields ``report(stage, done, total)``, which draws one bar for each stage on stderr if that is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        tasks: dict[str, TaskID] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total)
            progress.update(tasks[stage], completed=done, total=total)

        yield report


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout; every column but the first is right-aligned. A header of empty names is left out."""
    table = Table(title=Text(one_line(title)) if title else None, title_justify="left", show_header=any(header))
    for index, name in enumerate(header):
        table.add_column(name, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    console = Console()
    if not console.is_terminal:  # a file takes whole lines
        console = Console(width=_FILE_WIDTH)
    console.print(table)
