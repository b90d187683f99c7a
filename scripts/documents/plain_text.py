"""Escapes text of help and docstrings for Markdown, in which only backticks are markup."""

_MARKS = str.maketrans({mark: f"\\{mark}" for mark in "*_<>["})


def escaped(text: str) -> str:
    """``text`` in which code in backticks stays code, and all other markup is escaped."""
    parts = text.split("`")
    return "`".join(part if place % 2 else part.translate(_MARKS) for place, part in enumerate(parts))


def cell(text: str) -> str:
    """:func:`escaped` text on one line, for a table."""
    return escaped(" ".join(text.split())).replace("|", "\\|")
