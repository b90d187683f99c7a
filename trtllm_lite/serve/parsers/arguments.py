"""Defines ArgumentsWriter: emits the arguments of a call as they arrive, but never a part that could not be closed."""

from trtllm_lite.serve.parsers.json_scanner import JsonScanner


class ArgumentsWriter:
    """A JSON object that is written in pieces, the last of which may never come.

    At any time the emitted text followed by ``closing`` is a JSON object: output begins with the first value, keys are
    held back until their values begin, and numbers and words until they end.
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
        """The text that completes the emitted text to an object."""
        return self._scanner.closing

    def add(self, text: str) -> str:
        """Write the next piece; returns the text to emit: of this piece and of text that was held back."""
        self._scanner.scan(text, 0)
        place = self._scanner.closable_at
        if place < 0:
            self._waiting.append(text)
            return ""
        out = "".join([*self._waiting, text[:place]])
        self._waiting = [text[place:]] if place < len(text) else []
        return out
