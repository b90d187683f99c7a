"""ReasoningParser: parts what a model thinks from what it answers, by the markers around its thoughts."""

from dataclasses import dataclass

from trtllm_lite.runtime.session.reasoning import Thoughts
from trtllm_lite.serve.parsers.events import Content, Reasoning
from trtllm_lite.serve.parsers.text_reader import Fault, Steps, TextReader


@dataclass(frozen=True)
class ReasoningMarkers:
    """What thoughts begin and end with: one of several texts each, of which the first is the usual one.

    ``are_special``: the markers are special tokens, whose names the text must have. ``around_answers``: what stands
    around answers, and is no part of them.
    """

    begins: tuple[str, ...]
    ends: tuple[str, ...]
    are_special: bool = False
    around_answers: tuple[str, ...] = ()

    @property
    def thoughts(self) -> Thoughts:
        """The same for the runtime."""
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
"""The models' markers, by the names of vLLM's parsers. One line is all that another parser needs."""


class ReasoningParser(TextReader):
    """Gives thoughts as Reasoning, and all else as Content.

    Thoughts stand at the text's beginning: behind their marker, or from the first character if ``starts_inside``, for
    prompts that end with the marker (a text that repeats it is understood). Elsewhere a marker is content. Line ends
    behind a marker belong to the form, and are dropped. Thoughts that do not end are all of the text.
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
        """Whether the text begins with thoughts; what was read of them is held."""
        self._hold()
        try:
            yield from self._skip_space()
            yield from self._expect(*self._markers.begins)
        except Fault:
            return self._starts_inside
        self._let_go()
        yield from self._skip(_LINE_ENDS)
        return True
