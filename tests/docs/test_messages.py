"""Messages quoted on the troubleshooting page exist in the sources."""

import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.docs.blocks import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"
COLUMN = "the message says"
# Whitespace between two adjacent string literals in Python or C++, including the prefix of an f-string.
_JOINED = re.compile(r"""["']\s*\n\s*[fr]?["']""")


def quoted() -> Iterator[str]:
    """The messages in tables with the column COLUMN."""
    place: int | None = None
    for line in PAGE.read_text().splitlines():
        if not line.startswith("|"):
            place = None
            continue
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if COLUMN in cells:
            place = cells.index(COLUMN)
        elif place is not None and not cells[0].startswith("---"):
            message = re.fullmatch("`([^`]+)`", cells[place])
            assert message, f"{PAGE.name}: expected one quoted message, found {cells[place]}"
            yield message[1]


def parts_of(message: str) -> list[str]:
    """The fixed parts of a message."""
    return [part.strip() for part in message.split("…") if part.strip(" :;,.()")]


@cache
def sources() -> tuple[str, ...]:
    """The texts of all sources of the package, with adjacent literals joined."""
    files = [path for kind in ("*.py", "*.cc", "*.h") for path in (ROOT / "trtllm_lite").rglob(kind)]
    return tuple(_JOINED.sub("", path.read_text()) for path in sorted(files))


def is_said(message: str) -> bool:
    """Whether one source has all fixed parts of a message."""
    return any(all(part in source for part in parts_of(message)) for source in sources())


@pytest.mark.parametrize("message", list(quoted()))
def test_the_sources_say_what_is_quoted(message: str) -> None:
    assert parts_of(message), "the message has no fixed part"
    assert is_said(message), f"no source has all of {parts_of(message)}"


def test_a_message_that_nobody_says_is_noticed() -> None:
    assert not is_said("expected an engine for …, found a poem")
    assert is_said("max_input_len is …, above max_seq_len …: a sequence holds the prompt and the answer")


def test_every_error_class_has_a_section() -> None:
    names = re.findall(r"^class (\w+Error)\(TrtllmLiteError\)", (ROOT / "trtllm_lite" / "errors.py").read_text(), re.M)
    sections = re.findall(r"^## (\w+)$", PAGE.read_text(), re.M)
    assert len(names) > 5
    assert set(names) <= set(sections)
