"""Writes the file that ``--html`` names."""

from pathlib import Path

import click

_REMEDY = "choose another file for --html"


def require_page(path: Path) -> None:
    """Raise OutputError if a page cannot be written to ``path``, before anything is computed for it."""
    from trtllm_lite.common.files import require_writable, writing

    with writing(str(path), _REMEDY):
        require_writable(path)


def write_page(path: Path, text: str, *, quiet: bool = False) -> None:
    """Write a page and, unless ``quiet``, report it."""
    from trtllm_lite.common.files import write_file, writing

    with writing(str(path), _REMEDY):
        write_file(path, text.encode())
    if not quiet:
        click.echo(f"wrote {path}")
