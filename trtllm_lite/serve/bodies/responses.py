"""The body of /v1/responses, and the conversation that it means."""

from typing import Annotated, Any, Literal

import msgspec

from trtllm_lite.serve.api_error import ApiError
from trtllm_lite.serve.bodies.chat import ChatBody, Function, NamedFunction, NamedTool, Tool
from trtllm_lite.serve.bodies.response_input import messages_of
from trtllm_lite.serve.bodies.sampling import SamplingFields


class ReasoningOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How to think."""

    effort: str | None = None


class TextOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The form of the text: ``format`` is OpenAI's text, json_object or json_schema."""

    format: dict[str, Any] | None = None


class FunctionTool(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A function that the model may call."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionChoice(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The function that must be called."""

    type: Literal["function"]
    name: str


class ResponsesBody(SamplingFields, forbid_unknown_fields=True, kw_only=True):
    """OpenAI's fields, and vLLM's further ones that say how to sample."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    text: TextOptions | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None


def to_chat(body: ResponsesBody) -> ChatBody:
    """The chat whose answer is the response. Raises ApiError for what responses cannot have."""
    _check(body)
    effort = None if body.reasoning is None else body.reasoning.effort
    own: dict[str, Any] = {
        "messages": messages_of(body.input, body.instructions),
        "max_tokens": body.max_output_tokens,
        "response_format": _response_format(body.text),
        "tools": None if body.tools is None else [_tool(tool) for tool in body.tools],
        "tool_choice": _tool_choice(body.tool_choice),
        "parallel_tool_calls": body.parallel_tool_calls,
        "reasoning_effort": effort,
        "chat_template_kwargs": body.chat_template_kwargs,
    }
    shared = {name: getattr(body, name) for name in SamplingFields.__struct_fields__}
    return ChatBody(**{**shared, **own})


def _check(body: ResponsesBody) -> None:
    if body.stream_options is not None and body.stream_options.continuous_usage_stats:
        raise _wrong(
            "stream_options", "stream_options.continuous_usage_stats: the last event has the usage; leave it out"
        )


def _response_format(text: TextOptions | None) -> dict[str, Any] | None:
    """``text.format`` as the ``response_format`` of chat completions, which nests the schema in ``json_schema``."""
    form = None if text is None else text.format
    if form is None:
        return None
    kind = form.get("type")
    if kind == "json_schema" and isinstance(form.get("schema"), dict):
        return {"type": "json_schema", "json_schema": {name: form[name] for name in form if name != "type"}}
    if kind in ("text", "json_object"):
        return form
    raise _wrong("text.format", "text.format: expected the type text, json_object, or json_schema with a schema")


def _tool(tool: FunctionTool) -> Tool:
    function = Function(name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict)
    return Tool(type="function", function=function)


def _tool_choice(choice: Any) -> Any:
    if not isinstance(choice, FunctionChoice):
        return choice
    return NamedTool(type="function", function=NamedFunction(name=choice.name))


def _wrong(param: str, message: str) -> ApiError:
    return ApiError(400, message, param=param, code="unsupported_value")
