"""The bodies of /v1/messages and /v1/messages/count_tokens, and the conversation that they mean."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from trtllm_lite.serve.api_error import ApiError
from trtllm_lite.serve.bodies.chat import ChatBody, Function, NamedFunction, NamedTool, Tool
from trtllm_lite.serve.bodies.message_blocks import messages_of
from trtllm_lite.serve.bodies.requested import REQUESTED, struct_of


class Thinking(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Whether to think, as long as the model likes: ``budget_tokens``, a field of Anthropic's API, has no effect."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None


class ToolOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A function that the model may call. Its input always streams as it comes, and prompts are always cached."""

    name: str
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None
    description: str | None = None
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None
    eager_input_streaming: bool | None = None


class ToolSelection(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The choice of a tool: ``any`` requires some tool, ``tool`` the one with the given name."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class JsonFormat(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The schema that the text must follow."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The form of the text, and how much to think about it."""

    effort: str | None = None
    format: JsonFormat | None = None


class PromptFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields that the prompt depends on; all prompts are cached, whatever ``cache_control`` says."""

    messages: list[dict[str, Any]]
    model: str = ""
    system: str | list[dict[str, Any]] | None = None
    tools: list[ToolOptions] | None = None
    tool_choice: ToolSelection | None = None
    thinking: Thinking | None = None
    output_config: OutputOptions | None = None
    cache_control: dict[str, Any] | None = None


if TYPE_CHECKING:
    _Drawn = PromptFields
else:
    _Drawn = struct_of("_Drawn", PromptFields, of_messages=True)


class MessagesBody(_Drawn, forbid_unknown_fields=True, kw_only=True):
    """Anthropic's fields; ``metadata`` and ``service_tier`` have no effect."""

    max_tokens: int
    stream: bool = False
    stop_sequences: list[Annotated[str, msgspec.Meta(min_length=1)]] | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None


def to_chat(body: MessagesBody) -> ChatBody:
    """The chat whose answer is the message. Raises ApiError."""
    sampling: dict[str, Any] = {
        "max_tokens": body.max_tokens,
        "stream": body.stream,
        "stop": body.stop_sequences,
        **{called: getattr(body, called) for called, http in REQUESTED.values() if http.in_messages},
    }
    return ChatBody(**_prompt(body), **sampling)


def to_prompt(body: PromptFields) -> ChatBody:
    """A chat request with the same prompt. Raises ApiError."""
    return ChatBody(**_prompt(body))


def _prompt(body: PromptFields) -> dict[str, Any]:
    messages = messages_of(body.messages, body.system)
    # An answer that the client has begun is continued.
    continues = bool(messages) and messages[-1]["role"] == "assistant"
    if continues and "tool_calls" in messages[-1]:
        raise _wrong("messages", "messages end with a tool_use: add a message with its tool_result")
    config, choice = body.output_config or OutputOptions(), body.tool_choice
    form = None if config.format is None else {"type": "json_schema", "json_schema": {"schema": config.format.schema}}
    return {
        "model": body.model,
        "messages": messages,
        "add_generation_prompt": not continues,
        "continue_final_message": continues,
        "tools": None if body.tools is None else [_tool(tool) for tool in body.tools],
        "tool_choice": None if choice is None else _tool_choice(choice),
        "parallel_tool_calls": None if choice is None else not choice.disable_parallel_tool_use,
        "chat_template_kwargs": _template_arguments(body.thinking),
        "response_format": form,
        "reasoning_effort": config.effort,
    }


def _template_arguments(thinking: Thinking | None) -> dict[str, Any] | None:
    """The arguments about thinking for templates; whether an adaptive model thinks is left to the template."""
    if thinking is None or thinking.type == "adaptive":
        return None
    return {"enable_thinking": thinking.type == "enabled"}


def _tool(tool: ToolOptions) -> Tool:
    function = Function(name=tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict)
    return Tool(type="function", function=function)


def _tool_choice(choice: ToolSelection) -> Any:
    if choice.type != "tool":
        return {"auto": "auto", "any": "required", "none": "none"}[choice.type]
    if choice.name is None:
        raise _wrong("tool_choice.name", "tool_choice.name is missing: say which tool")
    return NamedTool(type="function", function=NamedFunction(name=choice.name))


def _wrong(param: str, message: str) -> ApiError:
    return ApiError(400, message, param=param, code="invalid_value")
