"""Shows the files of the example package of ``docs/contributing/out-of-tree.md``."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[2] / "examples" / "dynamic_tanh"
_SOURCES = "src/dynamic_tanh"
_OPERATOR = f"{_SOURCES}/plugins/dynamic_tanh"


def _block(name: str) -> str:
    """A file of the package as a block."""
    path = _PACKAGE / name
    language = 'python {.no-run reason="is a file of the package"}' if path.suffix == ".py" else "text"
    return f"`{name}`:\n\n```{language}\n{path.read_text()}```\n"


EXAMPLE_PARTS: Mapping[str, Callable[[], str]] = {
    "example-pyproject": partial(_block, "pyproject.toml"),
    "example-setup": partial(_block, "setup.py"),
    "example-norm": partial(_block, f"{_SOURCES}/norm.py"),
    "example-family": partial(_block, f"{_SOURCES}/family.py"),
    "example-pass": partial(_block, f"{_SOURCES}/fuse.py"),
    "example-schema": partial(_block, f"{_OPERATOR}/schema.toml"),
    "example-reference": partial(_block, f"{_OPERATOR}/reference.py"),
    "example-cpu": partial(_block, f"{_OPERATOR}/cpu.cc"),
    "example-kernel": partial(_block, f"{_OPERATOR}/cuda.cuh"),
    "example-cuda": partial(_block, f"{_OPERATOR}/cuda.py"),
}
"""The blocks, by the names of the page's parts."""
