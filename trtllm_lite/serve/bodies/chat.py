"""The body of /v1/chat/completions."""

from typing import Any, Literal

import msgspec

from trtllm_lite.serve.bodies.sampling import SamplingFields

MAX_TOOLS = 128


class Function(msgspec.Struct, kw_only=True):
    """A function that the model may call; ``parameters`` is the JSON schema of its arguments."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True):
    """A tool, which is a function."""

    type: Literal["function"]
    function: Function


class NamedFunction(msgspec.Struct, kw_only=True):
    """The name of a function."""

    name: str


class NamedTool(msgspec.Struct, kw_only=True):
    """The tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


class ChatBody(SamplingFields, forbid_unknown_fields=True, kw_only=True):
    """OpenAI's fields, and vLLM's that go to the chat template."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool = True

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
