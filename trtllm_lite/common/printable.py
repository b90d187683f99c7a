"""Makes text from files safe for a terminal."""

_LAYOUT = "\n\t"
_MAX_LINE = 1000


def printable(text: str) -> str:
    """``text`` with the control characters that a terminal would obey escaped, except line ends and tabs.

    Names and messages in engines, checkpoints and models are untrusted: escape sequences in them could rewrite what the
    screen shows.
    """
    return "".join(
        character if character.isprintable() or character in _LAYOUT else _escaped(character) for character in text
    )


def one_line(text: str) -> str:
    """``text`` for a message or a cell of a table: line ends are escaped as well, and long text is cut."""
    cut = text if len(text) <= _MAX_LINE else f"{text[: _MAX_LINE - 1]}…"
    return "".join(character if character.isprintable() else _escaped(character) for character in cut)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
