"""Defines ReasoningParser: separates a model's thoughts from its answer, by the markers around thoughts."""

from dataclasses import dataclass

from trtllm_lite.runtime.session.reasoning import Thoughts
from trtllm_lite.serve.parsers.events import Content, Reasoning
from trtllm_lite.serve.parsers.text_reader import Fault, Steps, TextReader


@dataclass(frozen=True)
class ReasoningMarkers:
    """The markers that begin and end thoughts: several alternatives each, the first being the usual one.

    ``are_special``: the markers are special tokens, whose names the text has to include. ``around_answers``: texts
    around answers that are not part of them.
    """

    begins: tuple[str, ...]
    ends: tuple[str, ...]
    are_special: bool = False
    around_answers: tuple[str, ...] = ()

    @property
    def thoughts(self) -> Thoughts:
        """The markers as the runtime takes them."""
        return Thoughts(self.begins, (self.ends,))


_LINE_ENDS = r"[\r\n]"
_THINK = ReasoningMarkers(("<think>",), ("</think>",))
REASONING_MARKERS = {
    "cohere_command3": ReasoningMarkers(
        ("<|START_THINKING|>",),
        ("<|END_THINKING|>",),
        are_special=True,
        around_answers=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    "deepseek_r1": _THINK,
    "deepseek_v3": _THINK,
    "glm45": _THINK,
    "granite": ReasoningMarkers(
        ("Here is my thought process:", "Here's my thought process:"),
        ("Here is my response:", "Here's my response:"),
    ),
    "kimi_k2": _THINK,
    "mistral": ReasoningMarkers(("[THINK]",), ("[/THINK]",), are_special=True),
    "olmo3": _THINK,
    "qwen3": _THINK,
}
"""The models' markers, by the names of vLLM's parsers. A new parser needs one line here."""


class ReasoningParser(TextReader):
    """Returns thoughts as Reasoning, and all other text as Content.

    Thoughts are at the beginning of the text: after their marker, or from the first character if ``starts_inside``, for
    prompts that end with the marker (a text may repeat it). A marker elsewhere is content. Line ends after a marker are
    dropped. Thoughts that do not end take up the whole text.
    """

    def __init__(self, markers: ReasoningMarkers, *, starts_inside: bool = False) -> None:
        self._markers, self._starts_inside = markers, starts_inside
        self.is_inside = False
        """Whether thoughts have begun and not ended."""
        super().__init__()

    def _read(self) -> Steps[None]:
        if self._starts_inside:
            yield from self._skip(_LINE_ENDS)
        if (yield from self._begins()):
            self._kind, self.is_inside = Reasoning, True
            self._give_back()
            end = yield from self._text_until(self._markers.ends, self._emit_text)
            self._kind = Content
            if end is not None:
                self.is_inside = False
                yield from self._expect(end)
                yield from self._skip(_LINE_ENDS)
        self._give_back()
        around = self._markers.around_answers
        while around and (yield from self._text_until(around, self._emit_text)) is not None:
            yield from self._expect(*around)
        yield from self._rest()

    def _begins(self) -> Steps[bool]:
        """Whether the text begins with thoughts; the text that was read meanwhile is held."""
        self._hold()
        try:
            yield from self._skip_space()
            yield from self._expect(*self._markers.begins)
        except Fault:
            return self._starts_inside
        self._let_go()
        yield from self._skip(_LINE_ENDS)
        return True
