"""The table of fields that clients send beside those that the bodies have: hints are dropped, demands refused.

A hint asks for nothing that an answer would have to show, and a neutral value asks for what the server does anyway;
dropping either breaks no promise. Any other value of these fields is an error that says what to do instead.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec

from trtllm_lite.errors import shown
from trtllm_lite.serve.api_error import ApiError
from trtllm_lite.serve.bodies.requested import OTHER_NAMES


@dataclass(frozen=True)
class Row:
    """A field of the classes of ``bodies`` that are named in ``structs``, and of their subclasses.

    ``neutral`` are the values that are dropped, besides null, which is always dropped; None means all values. With
    ``is_list`` the field is a list, and ``neutral`` are its entries that are dropped. ``otherwise`` says what to do
    about other values. ``is_noted``: a header of the answer names the field if its value was dropped.
    """

    structs: tuple[str, ...]
    name: str
    neutral: tuple[Any, ...] | None = None
    otherwise: str = ""
    is_list: bool = False
    is_noted: bool = False

    def is_dropped(self, value: Any) -> bool:
        """Whether the value asks for nothing."""
        if value is None or self.neutral is None:
            return True
        if self.is_list:
            return isinstance(value, list) and all(entry in self.neutral for entry in value)
        return value in self.neutral

    def refusal(self, place: str, value: Any) -> ApiError:
        """The error about a value that is not dropped."""
        message = f"{place} is {shown(value)}: {self.otherwise}"
        return ApiError(400, message, param=place, code="unsupported_value")

    def schema(self) -> dict[str, Any]:
        """The JSON schema of the values that are dropped."""
        if self.neutral is None:
            return {"description": "Taken, and changes nothing."}
        words = {"description": f"Taken, and changes nothing. Other values are refused: {self.otherwise}."}
        if self.is_list:
            return {"type": ["array", "null"], "items": {"enum": list(self.neutral)}, **words}
        return {"enum": [*self.neutral, None], **words}


_ALL, _CHAT, _COMPLETION, _RESPONSES = ("SamplingFields",), ("ChatBody",), ("CompletionBody",), ("ResponsesBody",)
_PROMPT, _MESSAGES = ("PromptFields",), ("MessagesBody",)
_NOT_STORED = "responses are not stored: send the whole conversation as input"
_NO_LOGPROBS = "responses have no log probabilities: send chats to /v1/chat/completions"
_NO_SERVER_TOOLS = "the server has no tools of its own: send functions as tools"
_INCLUDED = (
    # Clients ask for encrypted reasoning where responses are not stored. Here reasoning is given in plain text.
    "reasoning.encrypted_content",
    # Fields that only the tools of OpenAI's servers use.
    *("web_search_call.action.sources", "web_search_call.results", "file_search_call.results"),
    *("code_interpreter_call.outputs", "computer_call_output.output.image_url", "message.input_image.image_url"),
)

ROWS = (
    # Style, caching, bookkeeping.
    Row((*_CHAT, "TextOptions"), "verbosity"),
    Row(_ALL, "prompt_cache_retention"),
    Row(_ALL, "client_metadata"),
    Row(_CHAT, "prediction"),
    Row(_CHAT, "guided_decoding_backend"),
    Row(("ReasoningOptions",), "summary"),  # reasoning is given whole
    Row(("ReasoningOptions",), "generate_summary"),
    Row((*_RESPONSES, *_PROMPT), "context_management"),
    Row(("Thinking",), "display"),
    Row(("FunctionTool", "ToolOptions"), "defer_loading"),
    Row(("ToolOptions",), "input_examples"),
    Row(("FunctionTool",), "output_schema"),
    Row(("OutputOptions",), "task_budget"),
    Row(_PROMPT, "anthropic_version"),
    Row(_PROMPT, "anthropic_beta"),
    Row(_PROMPT, "betas"),
    Row(_PROMPT, "speed"),
    Row(_MESSAGES, "inference_geo"),
    # Tools that OpenAI or Anthropic run on their servers.
    Row(_CHAT, "web_search_options", is_noted=True),
    Row(_RESPONSES, "max_tool_calls"),  # bounds calls of server tools alone
    Row(_PROMPT, "mcp_servers", ([],), _NO_SERVER_TOOLS),
    Row(_MESSAGES, "container", (), _NO_SERVER_TOOLS),
    Row(("FunctionTool", "ToolOptions"), "allowed_callers", ("direct",), _NO_SERVER_TOOLS, is_list=True),
    # Fields that have other names here.
    Row(_CHAT, "functions", ([],), "send functions as tools"),
    Row(_CHAT, "function_call", ("none", "auto"), "send tools, and tool_choice"),
    *(
        Row(_ALL, alias, (), f"it is called {called} here")
        for called, aliases in OTHER_NAMES.items()
        for alias in aliases
        if alias != called
    ),
    Row(_RESPONSES, "max_tokens", (), "it is called max_output_tokens here"),
    Row(_RESPONSES, "response_format", ({"type": "text"},), "it is called text.format here"),
    Row(_PROMPT, "output_format", (), "it is called output_config.format here"),
    # Parts that answers do not have.
    Row(_ALL, "spaces_between_special_tokens", (True,), "no spaces are put between special tokens; leave it out"),
    Row(_CHAT, "best_of", (1,), "chats return every choice that is sampled: send n"),
    Row(_CHAT, "echo", (False,), "chats are not echoed; leave it out"),
    Row(_CHAT, "modalities", (["text"],), 'expected ["text"], as only text is generated'),
    Row(_CHAT, "audio", (), "only text is generated: leave it out"),
    Row(_CHAT, "use_beam_search", (False,), "chats are sampled; search with /v1/completions"),
    Row(_COMPLETION, "suffix", ("",), "text is not generated before a suffix; leave it out"),
    Row(_RESPONSES, "previous_response_id", (), _NOT_STORED),
    Row(_RESPONSES, "conversation", (), _NOT_STORED),
    Row(_RESPONSES, "store", (False,), "responses are not stored: leave it out"),
    Row(_RESPONSES, "background", (False,), "responses are not stored, and end with their connection: leave it out"),
    Row(_RESPONSES, "prompt", (), "prompts are not stored: send input and instructions"),
    Row(_RESPONSES, "truncation", ("disabled", "auto"), "inputs are not truncated: leave truncation out"),
    Row(_RESPONSES, "n", (1,), "a response is one answer; leave it out"),
    Row(_RESPONSES, "include", _INCLUDED, f"expected none but {', '.join(_INCLUDED)}", is_list=True),
    Row(_RESPONSES, "top_logprobs", (0,), _NO_LOGPROBS),
    Row(_RESPONSES, "prompt_logprobs", (), _NO_LOGPROBS),
    Row(_RESPONSES, "return_tokens_as_token_ids", (False,), _NO_LOGPROBS),
    Row(_RESPONSES, "return_token_ids", (False,), "responses have no token ids: send chats to /v1/chat/completions"),
    Row(_RESPONSES, "use_beam_search", (False,), "responses are sampled: leave it out"),
)

_OPENAI_TOOLS = (
    "web_search(_preview)?|file_search|code_interpreter|image_generation|computer(_use_preview)?|mcp|custom|namespace|"
    "local_shell|shell|apply_patch|tool_search"
)
_ANTHROPIC_TOOLS = (
    "web_search|web_fetch|code_execution|computer|bash|text_editor|memory|tool_search_tool(_regex|_bm25)?|mcp_toolset|"
    "advisor"
)
_DATED = r"(_\d+)*"
_SERVER_TOOLS = {
    "Tool": f"({_OPENAI_TOOLS}){_DATED}",
    "FunctionTool": f"({_OPENAI_TOOLS}){_DATED}",
    "ToolOptions": f"({_ANTHROPIC_TOOLS}){_DATED}",
}
"""Maps structs of tools to types of tools that this server lacks; entries of these types are dropped from lists."""


@cache
def rows_of(struct: type[msgspec.Struct]) -> dict[str, Row]:
    """The rows of a struct by field."""
    names = [base.__name__ for base in reversed(struct.__mro__)]  # the struct's own rows override those of its bases
    return {row.name: row for name in names for row in ROWS if name in row.structs}


def server_tools(struct: type) -> str | None:
    """A regular expression of the types of entries that are left out of lists of this struct, or None for none."""
    return _SERVER_TOOLS.get(struct.__name__)


def is_server_tool(struct: type, entry: Any) -> bool:
    """Whether an entry of a list of this struct is left out."""
    pattern, kind = server_tools(struct), entry.get("type") if isinstance(entry, dict) else None
    return pattern is not None and isinstance(kind, str) and re.fullmatch(pattern, kind) is not None


def check_fields(body: msgspec.Struct) -> None:
    """Raise ApiError for a field of the struct itself that demands what the table refuses."""
    for name, row in _own_rows(type(body)):
        value = getattr(body, name)
        if not row.is_dropped(value):
            raise row.refusal(name, value)


@cache
def _own_rows(struct: type[msgspec.Struct]) -> Sequence[tuple[str, Row]]:
    return [(name, row) for name, row in rows_of(struct).items() if name in struct.__struct_fields__]
