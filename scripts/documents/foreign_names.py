"""Makes tables of the names of other engines and their meaning here, from trtllm_lite/foreign_names."""

import re
from collections.abc import Mapping

from documents.variants import markdown
from trtllm_lite.foreign_names.entry import SPREAD, Foreign
from trtllm_lite.foreign_names.llama_cpp import LLAMA_SERVER
from trtllm_lite.foreign_names.table import OPTIONS, TABLE

_ON_COMMAND_LINES = {*OPTIONS, "llama-server"}
_REPEATED = ("plan", "DraftTargetDecodingConfig", "MTPDecodingConfig", "EagleDecodingConfig", "Eagle3DecodingConfig")
"""Places that have the same names as `build` or NGramDecodingConfig."""
FOREIGN: Mapping[str, Mapping[str, Foreign]] = {
    **{place: table for place, table in TABLE.items() if place not in _REPEATED},
    "serve": {name: entry for name, entry in OPTIONS["serve"].items() if entry is not LLAMA_SERVER.get(name)},
}
"""Tables of the pages, by place; llama.cpp's options of `serve` have a table of their own."""


def part_of(place: str) -> str:
    """The name of the part of a page that has the names of ``place``."""
    return "foreign-" + re.sub("[^a-z]+", "-", place.lower())


def foreign_table(place: str) -> str:
    """A row for each meaning of names of ``place``: these names, and their replacement or the remedy."""
    is_option = place in _ON_COMMAND_LINES
    rows: dict[tuple[str, str], list[str]] = {}
    for name, entry in sorted(FOREIGN[place].items(), key=lambda item: item[0].lstrip("-")):
        rows.setdefault((_meaning(entry, is_option), _accepted(entry)), []).append(f"`{_spelled(name, is_option)}`")
    return markdown(("name", "here", "accepted"), [[", ".join(names), *row] for row, names in rows.items()]) + "\n"


def _spelled(name: str, is_option: bool) -> str:
    return f"--{name}" if is_option and not name.startswith("-") else name


def _meaning(entry: Foreign, is_option: bool) -> str:
    becomes = entry.becomes not in (None, SPREAD) and _spelled(str(entry.becomes), is_option)
    text = f"`{becomes}`" if becomes else entry.remedy
    return " ".join(text.split()).replace("|", "\\|")


def _accepted(entry: Foreign) -> str:
    """The accepted values."""
    if entry.values:
        return ", ".join(f"`{value}`" for value in entry.values)
    if entry.becomes:
        return "yes"
    if entry.harmless:
        return "yes, changes nothing"
    values = [str(value) for value in entry.neutral if value != ""]
    return ", ".join(f"`{value}`" for value in dict.fromkeys(values))
