"""Shows progress bars on stderr, in terminals and notebooks."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import TaskID

# Called with (name of the work, done, total).
Report = Callable[[str, int, int], None]


@contextmanager
def progress_bars(wanted: bool = True) -> Iterator[Report]:
    """Yield ``report(work, done, total)``, which draws a bar for each piece of work in a terminal or notebook."""
    if not wanted or not (sys.stderr.isatty() or "ipykernel" in sys.modules):
        yield lambda _work, _done, _total: None  # saves the import of rich
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    # Without ipywidgets rich would warn repeatedly in a notebook.
    watched = console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not watched) as progress:
        tasks: dict[str, TaskID] = {}

        def report(work: str, done: int, total: int) -> None:
            if work not in tasks:
                tasks[work] = progress.add_task(work, total=total)
            progress.update(tasks[work], completed=done, total=total)

        yield report
