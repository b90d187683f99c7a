"""Makes the text of one sequence as its tokens come: detokenizes them, and cuts the text where a stop word begins."""

from collections.abc import Callable, Sequence

from trtllm_lite.runtime.text.detokenizer import IncrementalDetokenizer
from trtllm_lite.runtime.text.stop_words import StopFilter
from trtllm_lite.runtime.text.words import Words


class TextStream:
    """Turns tokens into pieces of text, none of which is ever taken back.

    ``decode`` maps token ids to text; if it is None, there is no text, and only stop sequences are found. Without
    ``returns_text`` the text is only searched for stop strings, and not returned. A stop word that is complete before
    ``min_tokens`` tokens does not count. With ``include_stop`` the text keeps the stop word that ended it.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str] | None,
        prompt_ids: Sequence[int],
        stop_words: Words,
        *,
        returns_text: bool = True,
        min_tokens: int = 0,
        include_stop: bool = False,
    ) -> None:
        self._detokenizer = None
        if decode is not None and (returns_text or stop_words.texts):
            self._detokenizer = IncrementalDetokenizer(decode, prompt_ids)
        self._sequences = StopFilter[list[int]](stop_words.sequence_matcher, [], include_stop)
        self._texts = StopFilter[str](stop_words.text_matcher, "", include_stop)
        self._returns_text = returns_text
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._include_stop = include_stop

    @property
    def match(self) -> str | tuple[int, ...] | None:
        """The stop word that has ended the text."""
        return self._texts.match or self._sequences.match

    def push(self, token: int, *, is_end: bool = False) -> str:
        """Add a token; returns the text that is certain now. ``is_end`` says that the token itself ends the text."""
        self._num_tokens += 1
        if is_end and not self._include_stop:
            return ""
        armed = self._num_tokens >= self._min_tokens
        text = self._add(self._sequences.push([token], armed), armed)
        return text if self._returns_text else ""

    def finish(self) -> str:
        """The text still held back, when generation ended inside a possible stop word or an incomplete character."""
        armed = self._num_tokens >= self._min_tokens
        text = self._add(self._sequences.finish(), armed)
        if self._detokenizer is not None and self._texts.match is None:
            text += self._texts.push(self._detokenizer.finish(), armed)
        if self._texts.match is None:
            text += self._texts.finish()
        return text if self._returns_text else ""

    def _add(self, token_ids: list[int], armed: bool) -> str:
        if self._detokenizer is None or self._texts.match is not None:
            return ""
        return self._texts.push("".join(map(self._detokenizer.push, token_ids)), armed)
