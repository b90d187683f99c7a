"""Text from files, made safe for a terminal."""

_LAYOUT = "\n\t"


def printable(text: str) -> str:
    """``text`` with every character escaped that a terminal would obey instead of print, but for line ends and tabs.

    Names and messages in engines, checkpoints and models come from strangers: escape sequences in them could rewrite
    what the screen shows.
    """
    return "".join(
        character if character.isprintable() or character in _LAYOUT else _escaped(character) for character in text
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
