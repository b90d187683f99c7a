"""The fenced blocks of README.md and docs/, and the commands in their shell scripts."""

import re
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>.*)$")
_INFO = re.compile(
    r'(?P<language>bash|python|yaml|text)(?: title="(?P<title>[^"]+)")?(?P<mark> \{\.no-run reason="[^"]+"\})?'
)
_SEPARATORS = ("&&", "||", "|", ";")


@dataclass(frozen=True)
class Block:
    """A block of ``page`` whose fence is at ``line``, counted from 1; ``runs`` unless its fence says why it cannot.

    ``title`` is the file's name if the block is the content of a file.
    """

    page: Path
    line: int
    language: str
    runs: bool
    text: str
    title: str | None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    """The blocks of a page, in order. Raises AssertionError for a fence without a language or with an unknown one."""
    start, info, indent, lines = 0, "", "", []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = _FENCE.match(line)
        if fence is None:
            lines.append(line)
        elif not start:
            start, info, indent, lines = number, fence["info"].strip(), fence["indent"], []
        else:
            assert fence[0] == f"{indent}```", f"{page}:{number}: expected the fence of line {start} to end"
            found = _INFO.fullmatch(info)
            assert found, f"{page}:{start}: unknown fence {info!r}"
            text = textwrap.dedent("\n".join(lines)) + "\n"
            yield Block(page, start, found["language"], found["mark"] is None, text, found["title"])
            start = 0
    assert not start, f"{page}:{start}: the block does not end"


def blocks(*languages: str) -> list[Block]:
    """The blocks of all pages in these languages."""
    return [block for page in PAGES for block in blocks_of(page) if block.language in languages]


def commands_of(script: str) -> Iterator[Sequence[str]]:
    """The words of each command of a script, in which nothing but quotes, comments and joined lines is special."""
    pending = ""
    for line in script.splitlines():
        pending += line
        if pending.endswith("\\"):
            pending = pending[:-1]
            continue
        try:
            words = shlex.split(pending, comments=True)
        except ValueError:  # a quote that ends on a later line
            pending += "\n"
            continue
        pending = ""
        yield from _separated(words)
    assert not pending, f"a command that does not end: {pending}"


def _separated(words: Sequence[str]) -> Iterator[Sequence[str]]:
    command: list[str] = []
    for word in (*words, ";"):
        if word not in _SEPARATORS:
            command.append(word)
        elif command:
            yield command
            command = []
