"""Parses calls whose names come before their arguments, between special tokens: DeepSeek's and Kimi's."""

import re
from abc import abstractmethod
from typing import ClassVar

from trtllm_lite.serve.parsers.guides import CallFormat, Slot
from trtllm_lite.serve.parsers.text_reader import Fault, Steps
from trtllm_lite.serve.parsers.tool_parser import FormedCallParser

_SECTION, _SECTION_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _SEPARATOR, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_FENCE, _FENCE_END = "```json", "```"
_KIMI_ID = re.compile(r"(?:functions\.)?(.+?)(?::[0-9]+)?\s*")


class HeadedCallsParser(FormedCallParser):
    """Parses a section of calls, each after its own marker; the markers around the section may be missing."""

    needs_special_tokens: ClassVar[bool] = True
    _section_end: ClassVar[str]

    def _call(self) -> Steps[None]:
        section, call = self._markers
        if (yield from self._match(section)) is not None:
            yield from self._skip_space()
        yield from self._expect(call)
        name, call_id = yield from self._read_head()
        yield from self._skip_space()
        if not name or (yield from self._peek()) != "{":
            raise Fault
        self._begin(name, call_id)
        yield from self._json(self._emit_arguments)
        self._end()
        yield from self._skip_space()
        yield from self._read_tail()
        yield from self._match(*self._ends)
        yield from self._skip_space()
        yield from self._match(self._section_end)
        yield from self._skip_space()

    @abstractmethod
    def _read_head(self) -> Steps[tuple[str, str | None]]:
        """Read a call up to its arguments: the function's name, and the call's id if it has one."""

    def _read_tail(self) -> Steps[None]:
        """Read the text between the arguments and the end of the call."""
        yield from ()


class DeepseekV3Parser(HeadedCallsParser):
    """``function<｜tool▁sep｜>NAME``, and the arguments in a block of Markdown: DeepSeek V3 and R1.

    Described by the chat templates of https://huggingface.co/deepseek-ai/DeepSeek-V3-0324 and DeepSeek-R1-0528.
    """

    _markers: ClassVar[tuple[str, ...]] = (_SECTION, _CALL)
    _ends: ClassVar[tuple[str, ...]] = (_CALL_END,)
    _section_end: ClassVar[str] = _SECTION_END
    _format: ClassVar[CallFormat] = CallFormat(
        marker=_SECTION,
        repeated=False,
        call=(
            *(f"{_CALL}function{_SEPARATOR}", Slot.NAME, f"\n{_FENCE}\n", Slot.ARGUMENTS),
            f"\n{_FENCE_END}{_CALL_END}",
        ),
        separator="\n",
        end=_SECTION_END,
    )

    def _read_head(self) -> Steps[tuple[str, str | None]]:
        name = yield from self._word(r"[^<\r\n]")
        yield from self._expect(_SEPARATOR)
        if name.strip() == "function":
            name = yield from self._word(r"[^<\r\n`{]")
        yield from self._skip_space()
        yield from self._match(_FENCE)
        return name.strip(), None

    def _read_tail(self) -> Steps[None]:
        yield from self._match(_FENCE_END)
        yield from self._skip_space()


class DeepseekV31Parser(DeepseekV3Parser):
    """``NAME<｜tool▁sep｜>`` and the arguments: DeepSeek V3.1.

    Described by the chat template of https://huggingface.co/deepseek-ai/DeepSeek-V3.1. What V3 writes is read as well.
    """

    _format: ClassVar[CallFormat] = CallFormat(
        marker=_SECTION,
        repeated=False,
        call=(_CALL, Slot.NAME, _SEPARATOR, Slot.ARGUMENTS, _CALL_END),
        end=_SECTION_END,
    )


class KimiK2Parser(HeadedCallsParser):
    """``functions.NAME:N<|tool_call_argument_begin|>`` and the arguments: Kimi K2.

    Described by https://huggingface.co/moonshotai/Kimi-K2-Instruct/blob/main/docs/tool_call_guidance.md. The text
    before the arguments is the call's id, which the model expects to see again.
    """

    _markers: ClassVar[tuple[str, ...]] = ("<|tool_calls_section_begin|>", "<|tool_call_begin|>")
    _ends: ClassVar[tuple[str, ...]] = ("<|tool_call_end|>",)
    _section_end: ClassVar[str] = "<|tool_calls_section_end|>"
    _format: ClassVar[CallFormat] = CallFormat(
        marker="<|tool_calls_section_begin|>",
        repeated=False,
        call=(
            *("<|tool_call_begin|>functions.", Slot.NAME, ":", Slot.NUMBER, "<|tool_call_argument_begin|>"),
            *(Slot.ARGUMENTS, "<|tool_call_end|>"),
        ),
        end="<|tool_calls_section_end|>",
    )

    def _read_head(self) -> Steps[tuple[str, str | None]]:
        call_id = yield from self._word(r"[^<\r\n]")
        yield from self._expect("<|tool_call_argument_begin|>")
        found = _KIMI_ID.fullmatch(call_id.strip())
        if found is None:
            raise Fault
        return found[1], call_id.strip()
