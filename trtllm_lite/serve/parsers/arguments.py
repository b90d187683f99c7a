"""ArgumentsWriter: lets the arguments of a call out as they arrive, and never what could not be closed."""

from trtllm_lite.serve.parsers.json_scanner import JsonScanner


class ArgumentsWriter:
    """A JSON object that is written in pieces, of which the last may never come.

    What is let out becomes an object with ``closing`` behind it, at any time: it begins with the first value, and keys,
    numbers and words are held back until their values begin, or end.
    """

    def __init__(self) -> None:
        self._scanner = JsonScanner()
        self._waiting: list[str] = []

    @property
    def is_whole(self) -> bool:
        """Whether the object has ended."""
        return self._scanner.is_done

    @property
    def closing(self) -> str:
        """What makes an object of what was let out."""
        return self._scanner.closing

    def add(self, text: str) -> str:
        """Write the next piece: what is let out, of it and of what was held back."""
        self._scanner.scan(text, 0)
        place = self._scanner.closable_at
        if place < 0:
            self._waiting.append(text)
            return ""
        out = "".join([*self._waiting, text[:place]])
        self._waiting = [text[place:]] if place < len(text) else []
        return out
