"""Makes a prompt from a conversation, and chooses how the answer is parsed."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from trtllm_lite.errors import ArgumentError, shown
from trtllm_lite.runtime.lora.request import LoRARequest
from trtllm_lite.runtime.media.prepared import PreparedImage
from trtllm_lite.runtime.session.guided_decoding import GuidedDecodingParams
from trtllm_lite.runtime.session.image_prompts import ImagePrompts, split_message_images
from trtllm_lite.runtime.session.prompt_embeds import PromptEmbeds
from trtllm_lite.runtime.session.prompts import check_chars, checked_ids
from trtllm_lite.runtime.session.reasoning import Thoughts
from trtllm_lite.runtime.text.tokenizer import Tokenizer
from trtllm_lite.serve.api_error import ApiError
from trtllm_lite.serve.bodies import check_num_messages
from trtllm_lite.serve.bodies.chat import MAX_TOOLS, ChatBody, NamedTool
from trtllm_lite.serve.metrics.counted_parser import CountedParser
from trtllm_lite.serve.parsers import (
    NamedFunction,
    OutputParser,
    Tool,
    ToolChoice,
    find_tool_parser,
    make_parser,
    needs_special_tokens,
    thoughts_of,
)
from trtllm_lite.serve.served_model import Prompt, ServedModel
from trtllm_lite.serve.special_tokens import check_texts

_MAX_TOP_LOGPROBS = 20


@dataclass(frozen=True)
class Conversation:
    """A conversation that is ready for generation: the prompt, and the settings of the answer's parser."""

    prompt: Prompt
    tools: Sequence[Tool]
    tool_parser: str | None
    reasoning_parser: str | None
    starts_inside_reasoning: bool
    one_call: bool
    """Whether an answer ends with its first tool call."""
    tool_parses: Counter[str]

    def parser(self) -> OutputParser | None:
        """A parser for one answer; None if all of its text is content."""
        if self.tool_parser is None and self.reasoning_parser is None:
            return None
        parser = make_parser(
            tool_parser=self.tool_parser,
            reasoning_parser=self.reasoning_parser,
            tools=self.tools,
            starts_inside=self.starts_inside_reasoning,
        )
        return parser if self.tool_parser is None else CountedParser(parser, self.tool_parses)


def prepare(model: ServedModel, adapter: LoRARequest | None, body: ChatBody) -> Conversation:
    """Render, tokenize and check a conversation, which may be slow. Raises ApiError, ArgumentError, LimitError."""
    tokenizer, session = model.required_tokenizer(), model.session
    _check(body)
    images, body = _without_images(model, body)
    text = render(model, body)
    check_chars("the conversation", text, tokenizer, session.limits.max_input_len)
    whole = text if images is None else images.expand(text)
    ids = tokenizer.encode(whole, add_special_tokens=body.add_special_tokens)  # templates write special tokens
    reasoning_parser = model.settings.reasoning_parser
    tools = [] if body.tool_choice == "none" else _tools_for_parser(body)
    tool_parser = _tool_parser(model) if tools else None
    thoughts = thoughts_of(reasoning_parser)
    params = body.sampling_params(
        max_tokens=body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens,
        draws=bool(session.manifest.model.generation.get("do_sample")),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        guided_decoding=_behind(thoughts, _guided(body, tools, tool_parser), body, tokenizer, text),
        skip_special_tokens=body.skip_special_tokens and not needs_special_tokens(tool_parser, reasoning_parser),
    )
    array = checked_ids("the conversation", np.asarray(ids), session.manifest.model.vocab_size)
    embeds = None
    if images is not None:
        array, embeds = images.place(array, body.cache_salt)
    prompt = model.prompt(array, text, params, body, adapter, embeds)
    one_call = tool_parser is not None and body.parallel_tool_calls is False
    behind = None if thoughts is None else thoughts.behind(array, tokenizer, session.manifest.model.eos_token_ids)
    inside = behind is not None and not behind.starts
    return Conversation(prompt, tools, tool_parser, reasoning_parser, inside, one_call, model.tool_parses)


@dataclass(frozen=True)
class _Images:
    """The images of a conversation, prepared."""

    vision: ImagePrompts
    prepared: Sequence[PreparedImage]

    def expand(self, text: str) -> str:
        """The text of the conversation with those of its images."""
        return self.vision.expand("the conversation", text, self.prepared)

    def place(self, ids: NDArray[np.int32], cache_salt: str) -> tuple[NDArray[np.int32], PromptEmbeds]:
        """The tokens of the conversation with those of its images, and their rows, which may have to be computed."""
        return self.vision.place("the conversation", ids, self.prepared, cache_salt)


def _without_images(model: ServedModel, body: ChatBody) -> tuple[_Images | None, ChatBody]:
    """The images of a conversation, read in processes of their own, and the body without them; None for no images.

    Raises ApiError if the engine has no vision tower.
    """
    messages, contents = split_message_images(body.messages, from_data_urls=True)
    if not contents:
        return None, body
    vision = model.llm.vision
    if vision is None:
        raise ApiError(
            400,
            "the messages have images, and this model takes none: name another, or send text alone",
            param="messages",
            code="no_vision_tower",
        )
    waiting = [vision.workers.submit(content, len(contents) == 1) for content in contents]
    images = _Images(vision, [one.result() for one in waiting])
    return images, msgspec.structs.replace(body, messages=messages)


def _check(body: ChatBody) -> None:
    """Raise ApiError for fields that contradict each other, or that ask for something that is missing."""
    check_num_messages("messages", len(body.messages))
    if body.tools is not None and len(body.tools) > MAX_TOOLS:
        raise _wrong("tools", f"tools has {len(body.tools)} entries, which exceeds {MAX_TOOLS}: send fewer")
    if body.top_logprobs and not (body.logprobs and 0 <= body.top_logprobs <= _MAX_TOP_LOGPROBS):
        raise _wrong("top_logprobs", f"top_logprobs: expected 0 to {_MAX_TOP_LOGPROBS}, together with logprobs")
    if body.stream and body.prompt_logprobs is not None:
        raise _wrong(
            "prompt_logprobs", "prompt_logprobs: streams have none; leave out either prompt_logprobs or stream"
        )
    if body.continue_final_message and body.add_generation_prompt:
        raise _wrong("continue_final_message", "continue_final_message: set add_generation_prompt to false with it")
    needs_tools = body.tool_choice == "required" or isinstance(body.tool_choice, NamedTool)
    if needs_tools and not body.tools:
        raise _wrong("tool_choice", "tool_choice asks for a call, and there are no tools: give some, or leave it out")
    if isinstance(body.tool_choice, NamedTool):
        names = [tool.function.name for tool in body.tools or ()]
        wanted = body.tool_choice.function.name
        if wanted not in names:
            raise _wrong("tool_choice", f"tool_choice names {shown(wanted)}: expected one of the tools {shown(names)}")


def _tools_for_parser(body: ChatBody) -> list[Tool]:
    functions = [tool.function for tool in body.tools or ()]
    return [
        Tool(function.name, strict=bool(function.strict))
        if function.parameters is None
        else Tool(function.name, function.parameters, bool(function.strict))
        for function in functions
    ]


def _tools_for_template(body: ChatBody, no_text: str | None) -> list[dict[str, Any]]:
    """The tools without absent fields; a missing description becomes ``no_text`` unless that is None."""
    return [] if body.tools is None else [_without_nones(msgspec.to_builtins(tool), no_text) for tool in body.tools]


def _without_nones(tool: dict[str, Any], no_text: str | None) -> dict[str, Any]:
    function = {name: value for name, value in tool["function"].items() if value is not None}
    return {**tool, "function": function if no_text is None else {**function, "description": no_text} | function}


def _tool_parser(model: ServedModel) -> str:
    if model.settings.tool_parser is None:
        raise ApiError(
            400,
            "tools are given, and the server knows no format of calls for this model: start it with --tool_call_parser",
            param="tools",
            code="no_tool_parser",
        )
    return model.settings.tool_parser


def render(model: ServedModel, body: ChatBody) -> str:
    """The text of the conversation by the model's chat template.

    Messages with calls may lack content, and tools a description. Some templates handle this; for the others empty
    texts are filled in.
    """
    tokenizer = model.required_tokenizer()
    template = tokenizer.chat_template
    if template is None:
        raise ApiError(400, "this model has no chat template: send prompts to /v1/completions", code="no_chat_template")
    arguments = dict(body.chat_template_kwargs or {})
    arguments["add_generation_prompt"] = body.add_generation_prompt
    if body.documents is not None:
        arguments["documents"] = body.documents
    if body.reasoning_effort is not None:
        arguments["reasoning_effort"] = body.reasoning_effort
        if body.reasoning_effort == "none":
            arguments.setdefault("enable_thinking", False)

    def rendered(no_text: str | None) -> str:
        messages = [_for_template(message, no_text) for message in body.messages]
        tools = _tools_for_template(body, no_text)
        if model.settings.refuses_special_tokens:
            printed = {"messages": messages, "tools": tools, "documents": body.documents}
            check_texts({**printed, "chat_template_kwargs": body.chat_template_kwargs}, tokenizer)
        return template.render(
            messages,
            template=body.chat_template,
            tools=tools or None,
            arguments=arguments,
            continue_final_message=body.continue_final_message,
        )

    try:
        try:
            return rendered(None)
        except ArgumentError:
            return rendered("")
    except ArgumentError as error:
        raise _wrong(_field_of_template(body, str(error)), str(error)) from error


def _field_of_template(body: ChatBody, message: str) -> str:
    """The field of the request that a chat template's error is about."""
    for field in ("chat_template_kwargs", "continue_final_message"):
        if message.startswith(field):
            return field
    return "messages" if body.chat_template is None else "chat_template"


def _for_template(message: dict[str, Any], no_text: str | None) -> dict[str, Any]:
    """A message as chat templates expect it: arguments of calls as objects, and "system" for OpenAI's "developer".

    Calls without content get ``no_text`` as content. A refusal counts as the assistant's text. Arguments that are not
    an object, of calls that were cut off or malformed, stay text. If ``no_text`` is given because the template cannot
    handle missing content, it may not handle such arguments either: the text then becomes the value of an object.
    """
    made = _with_thoughts(message)
    if made.get("role") == "developer":
        made["role"] = "system"
    calls, content = made.get("tool_calls"), made.get("content")
    if isinstance(content, list):
        made["content"] = [_text_of_refusal(part) for part in content]
    elif content is None and not calls and made.get("role") == "assistant":
        made["content"] = made.get("refusal") or ""
    if calls and isinstance(calls, list):
        made["tool_calls"] = [_call_for_template(call, needs_object=no_text is not None) for call in calls]
        if made.get("content") is None:
            made["content"] = no_text
    elif "tool_calls" in made:
        del made["tool_calls"]  # null, or an empty list
    return made


def _text_of_refusal(part: Any) -> Any:
    is_refusal = isinstance(part, dict) and part.get("type") == "refusal"
    return {"type": "text", "text": part.get("refusal")} if is_refusal else part


def _with_thoughts(message: dict[str, Any]) -> dict[str, Any]:
    """``message`` with its thoughts under each name that a template may use for them.

    The input has them as ``reasoning_content``, or as vLLM's ``reasoning``. gpt-oss's template reads ``thinking``, and
    refuses calls with both thoughts and content.
    """
    thoughts = message.get("reasoning_content") or message.get("reasoning")
    if not isinstance(thoughts, str) or not thoughts:
        return dict(message)
    named = {"reasoning_content": thoughts}
    if not (message.get("tool_calls") and message.get("content")):
        named["thinking"] = thoughts
    return {**named, **message, "reasoning_content": thoughts}


def _call_for_template(call: Any, *, needs_object: bool) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(arguments, str) or not isinstance(function, dict):
        return call
    return {**call, "function": {**function, "arguments": _arguments_for_template(arguments, needs_object)}}


def _arguments_for_template(text: str, needs_object: bool) -> Any:
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if isinstance(arguments, dict):
        return arguments
    return {"arguments": text} if needs_object else text


def _guided(body: ChatBody, tools: Sequence[Tool], tool_parser: str | None) -> GuidedDecodingParams | None:
    """The grammar of the answer, by response_format and similar fields, or by the tools that must be called."""
    guided = body.guided()
    if tool_parser is not None:
        guide = find_tool_parser(tool_parser).guide(
            tools, _choice(body), parallel=body.parallel_tool_calls is not False
        )
        is_forced = body.tool_choice == "required" or isinstance(body.tool_choice, NamedTool)
        if guided is not None and guide is not None and not is_forced:
            raise _wrong("response_format", "response_format does not go with tools that are strict and may be called")
        guided = guide or guided  # a forced call replaces the answer, and with it the answer's grammar
    return guided


def _behind(
    thoughts: Thoughts | None, guided: GuidedDecodingParams | None, body: ChatBody, tokenizer: Tokenizer, prompt: str
) -> GuidedDecodingParams | None:
    """``guided`` and the stop strings of ``body``, applied to the answer after thoughts.

    If nothing suggests that the model thinks, the grammar applies from the beginning: else a model that does not think
    could be led into thoughts.
    """
    if thoughts is None or (guided is None and not body.stop):
        return guided
    if guided is None:
        return GuidedDecodingParams(reasoning_start_str=thoughts.starts, reasoning_end_str=thoughts.ends)
    if not thoughts.are_likely(prompt, tokenizer):
        return guided
    return replace(guided, reasoning_start_str=thoughts.starts, reasoning_end_str=thoughts.ends)


def _choice(body: ChatBody) -> ToolChoice:
    choice = body.tool_choice
    return NamedFunction(choice.function.name) if isinstance(choice, NamedTool) else choice or "auto"


def _wrong(param: str, message: str) -> ApiError:
    return ApiError(400, message, param=param, code="invalid_value")
