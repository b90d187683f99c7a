"""Parses calls that are JSON objects, or a list, between markers: Granite's, Phi-4-mini's, InternLM's and Cohere's."""

from typing import ClassVar

from trtllm_lite.serve.parsers.guides import CallFormat, Slot
from trtllm_lite.serve.parsers.text_reader import Steps
from trtllm_lite.serve.parsers.tool_parser import FormedCallParser

_OBJECT = ('{"name": ', Slot.JSON_NAME, ', "arguments": ', Slot.ARGUMENTS, "}")


class JsonCallsParser(FormedCallParser):
    """Parses a call as a JSON object, or a list of calls, after a marker."""

    needs_special_tokens: ClassVar[bool] = True

    def _call(self) -> Steps[None]:
        yield from self._expect(*self._markers)
        yield from self._skip_space()
        if (yield from self._match("[")) is None:
            yield from self._call_object(needs_arguments=False)
        else:
            yield from self._list()
        yield from self._read_end()

    def _list(self) -> Steps[None]:
        separator = ","
        while separator == ",":
            yield from self._skip_space()
            yield from self._call_object(needs_arguments=False)
            yield from self._skip_space()
            self._hold()
            separator = yield from self._expect(",", "]")
        self._let_go()


class GraniteParser(JsonCallsParser):
    """``<|tool_call|>[{"name": …, "arguments": …}, …]``: Granite 3.

    Described by the chat template of https://huggingface.co/ibm-granite/granite-3.3-8b-instruct; Granite 3.1 writes
    ``<tool_call>`` for the marker. Granite 4 writes as Hermes does.
    """

    _markers: ClassVar[tuple[str, ...]] = ("<|tool_call|>", "<tool_call>")
    _format: ClassVar[CallFormat] = CallFormat(
        marker="<|tool_call|>",
        repeated=False,
        first="[",
        call=_OBJECT,
        separator=", ",
        end="]",
    )


class Phi4MiniParser(JsonCallsParser):
    """``<|tool_call|>[{"name": …, "arguments": …}, …]<|/tool_call|>``: Phi-4-mini.

    Described by https://huggingface.co/microsoft/Phi-4-mini-instruct; with other prompts the model begins with
    ``functools`` and ends with the list.
    """

    _markers: ClassVar[tuple[str, ...]] = ("<|tool_call|>", "functools[")
    _ends: ClassVar[tuple[str, ...]] = ("<|/tool_call|>",)
    _format: ClassVar[CallFormat] = CallFormat(
        marker="<|tool_call|>",
        repeated=False,
        first="[",
        call=_OBJECT,
        separator=", ",
        end="]<|/tool_call|>",
    )

    def _call(self) -> Steps[None]:
        if (yield from self._match("functools")) is None:
            yield from super()._call()
            return
        yield from self._expect("[")
        yield from self._list()
        yield from self._skip_space()


class InternlmParser(JsonCallsParser):
    """``<|action_start|><|plugin|>``, an object with ``name`` and ``parameters``, ``<|action_end|>``: InternLM.

    Described by https://github.com/InternLM/InternLM/blob/main/chat/chat_format.md.
    """

    _markers: ClassVar[tuple[str, ...]] = ("<|action_start|><|plugin|>",)
    _ends: ClassVar[tuple[str, ...]] = ("<|action_end|>",)
    _format: ClassVar[CallFormat] = CallFormat(
        marker="<|action_start|><|plugin|>",
        repeated=True,
        call=('\n{"name": ', Slot.JSON_NAME, ', "parameters": ', Slot.ARGUMENTS, "}<|action_end|>"),
        separator="\n",
    )


class CohereParser(JsonCallsParser):
    """``<|START_ACTION|>[{"tool_call_id": …, "tool_name": …, "parameters": …}, …]<|END_ACTION|>``: Command A and R7B.

    Command R and R+ write ``Action:`` and the list in a block of Markdown. Described by
    https://docs.cohere.com/docs/command-r7b-hf and by the chat templates.
    """

    _markers: ClassVar[tuple[str, ...]] = ("<|START_ACTION|>", "Action: ```json", "Action:```json")
    _ends: ClassVar[tuple[str, ...]] = ("<|END_ACTION|>", "```")
    _keys: ClassVar[tuple[tuple[str, ...], tuple[str, ...]]] = (("tool_name", "name"), ("parameters", "arguments"))
    _format: ClassVar[CallFormat] = CallFormat(
        marker="<|START_ACTION|>",
        repeated=False,
        first="[\n    ",
        call=(
            *('{"tool_call_id": "', Slot.NUMBER, '", "tool_name": ', Slot.JSON_NAME),
            *(', "parameters": ', Slot.ARGUMENTS, "}"),
        ),
        separator=",\n    ",
        end="\n]<|END_ACTION|>",
    )
