"""Turns prompts of any form into checked token ids."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.common.printable import one_line
from trtllm_lite.errors import ArgumentError, LimitError, shown
from trtllm_lite.runtime.session.prompt_embeds import PromptEmbeds, split_embeds
from trtllm_lite.runtime.text.chat import Message
from trtllm_lite.runtime.text.tokenizer import Tokenizer
from trtllm_lite.runtime.values import check_flag, check_length, is_list, is_whole_number

Prompt = str | Sequence[int] | NDArray[Any] | Mapping[str, Any] | Sequence[Message]
"""Forms of a prompt: text, token ids, {"prompt": text}, {"prompt_token_ids": ids}, {"prompt_embeds": rows}; in a chat,
one or more messages."""

MAX_PROMPT_IDS = 1 << 20
"""The maximum number of token ids of a prompt, more than any engine takes."""
_ROOMY_TOKEN_CHARS = 32  # characters of a long token; ordinary tokens have fewer
_EXPECTED = "expected a list of prompts: token-id lists, strings, or (with chat=True) strings or lists of messages"
_ONE_FORM = 'expected {"prompt": text}, {"prompt_token_ids": [...]} or {"prompt_embeds": rows}'
_DICTIONARIES = ("prompt_token_ids", "prompt", "prompt_embeds")


@dataclass(frozen=True)
class Chat:
    """A request to treat prompts as conversations, which the model's chat template ``template`` turns into text.

    If it is None, :meth:`ChatTemplate.render` chooses the template; it also gets ``tools`` and ``arguments``.
    """

    template: str | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    arguments: Mapping[str, Any] | None = None

    @classmethod
    def wanted(
        cls,
        chat: bool,
        template: str | None,
        tools: Sequence[Mapping[str, Any]] | None,
        arguments: Mapping[str, Any] | None,
    ) -> "Chat | None":
        """A Chat, or None without ``chat``. Raises ArgumentError if other arguments are given without ``chat``."""
        check_flag("chat", chat)
        if not chat and (template, tools, arguments) != (None, None, None):
            raise ArgumentError(
                "chat_template, tools and chat_template_kwargs are for the model's chat template: pass chat=True too"
            )
        return cls(template, tools, arguments) if chat else None


@dataclass(frozen=True)
class Prompts:
    """Prompts as ``token_ids``, int32[prompt_len] arrays; ``texts`` are their texts, None if given as token ids.

    ``embeds`` are embeddings that take the place of tokens. Prompts given as text get text as results. ``single``: one
    bare prompt was given, which gets one bare result.
    """

    token_ids: list[NDArray[np.int32]]
    texts: list[str] | None
    single: bool
    embeds: list[PromptEmbeds | None]

    @property
    def textual(self) -> bool:
        """Whether the prompts were given as text."""
        return self.texts is not None


def parse_prompts(
    value: Any,
    chat: Chat | None,
    tokenizer: Tokenizer | None,
    vocab_size: int,
    max_input_len: int,
    *,
    add_special_tokens: bool = True,
    edit: Callable[[int, str, str], str] | None = None,
) -> Prompts:
    """Token ids of ``value``: see ``ModelRunner.generate`` for its forms.

    ``add_special_tokens``: the tokenizer adds special tokens around a text; chat templates write them themselves.
    ``edit`` makes the text that is tokenized of the number of a prompt, its name and its text.

    Raises ArgumentError for another form, a token id outside the vocabulary, an empty prompt, or text for an engine
    without a tokenizer; LimitError for a text that certainly has more than ``max_input_len`` tokens.
    """
    single = isinstance(value, str | Mapping) or (chat is not None and is_conversation(value))
    prompts = [value] if single else _as_list(value)
    if not prompts:
        raise ArgumentError(f"there are no prompts: {_EXPECTED}")
    names = ["the prompt"] if single else [f"prompt {row}" for row in range(len(prompts))]
    embeds: list[PromptEmbeds | None] = [None] * len(prompts)
    if chat is None:
        prompts = [_unwrapped(prompt) for prompt in prompts]
        found = [split_embeds(name, prompt, vocab_size) for name, prompt in zip(names, prompts, strict=True)]
        prompts, embeds = [prompt for prompt, _ in found], [rows for _, rows in found]
    texts = None
    if chat is not None or isinstance(prompts[0], str):
        if tokenizer is None:
            raise ArgumentError(
                "this engine has no tokenizer: pass lists of token ids to `LLM` or `ModelRunner`, give `LLM` a "
                "directory that holds tokenizer.json as tokenizer=, or put that file beside the model, convert and "
                "build again"
            )
        texts = [_as_text(prompt, chat, tokenizer) for prompt in prompts]
        for name, text in zip(names, texts, strict=True):
            check_chars(name, text, tokenizer, max_input_len)
        adds = add_special_tokens and chat is None
        whole = [text if edit is None else edit(row, names[row], text) for row, text in enumerate(texts)]
        arrays = [np.asarray(tokenizer.encode(text, add_special_tokens=adds)) for text in whole]
    else:
        arrays = [_as_array(name, prompt) for name, prompt in zip(names, prompts, strict=True)]
    checked = [checked_ids(name, ids, vocab_size) for name, ids in zip(names, arrays, strict=True)]
    return Prompts(checked, texts, single, embeds)


def kept_ids(ids: NDArray[np.int32], truncate_prompt_tokens: int | None) -> NDArray[np.int32]:
    """The last ``truncate_prompt_tokens`` of a prompt's tokens, or all of them."""
    return ids[-truncate_prompt_tokens:] if truncate_prompt_tokens else ids


def as_texts(value: Any) -> Any:
    """``value`` unchanged. Raises ArgumentError unless it is a string or a non-empty list of strings."""
    if isinstance(value, str) or (is_list(value) and len(value) and all(isinstance(text, str) for text in value)):
        return value
    raise ArgumentError(f"texts is {shown(value)}: expected a string or a list of strings")


def is_token_ids(value: Any) -> bool:
    """Whether ``value`` is one prompt of token ids, judged by its first entry."""
    return is_list(value) and len(value) > 0 and is_whole_number(value[0])


def is_conversation(value: Any) -> bool:
    """Whether ``value`` is one prompt of chat messages, judged by its first entry."""
    return is_list(value) and len(value) > 0 and isinstance(value[0], Mapping)


def _as_list(value: Any) -> list[Any]:
    """The entries of a list, an array or another library's tensor."""
    try:
        if hasattr(value, "__getitem__") and not isinstance(value, bytes):
            return [value[row] for row in range(len(value))]
    except TypeError:  # no length: a scalar array
        pass
    raise ArgumentError(f"the prompts are {type(value).__name__}: {_EXPECTED}")


def _unwrapped(prompt: Any) -> Any:
    """The text or token ids of a prompt dictionary; one with embeddings, and any other prompt, unchanged."""
    if not isinstance(prompt, Mapping):
        return prompt
    if "role" in prompt:
        raise ArgumentError("a prompt is a chat message: messages need chat=True")
    unknown = [key for key in prompt if key not in _DICTIONARIES]
    if unknown or not prompt:
        found = f"with {shown(unknown[0])}" if unknown else "without entries"
        raise ArgumentError(f"a prompt is a dictionary {found}: {_ONE_FORM}")
    given = [key for key in _DICTIONARIES if prompt.get(key) is not None]
    if not given or ("prompt" in given and "prompt_embeds" in given):
        raise ArgumentError(f"a prompt is a dictionary with {' and '.join(given) or 'nothing but None'}: {_ONE_FORM}")
    return prompt if "prompt_embeds" in given else prompt[given[0]]


def _as_text(prompt: Any, chat: Chat | None, tokenizer: Tokenizer) -> str:
    if chat is None:
        if not isinstance(prompt, str):
            raise ArgumentError(f"a prompt is {type(prompt).__name__} among strings: {_EXPECTED}")
        return prompt
    if tokenizer.chat_template is None:
        raise ArgumentError("this model has no chat template: pass the whole prompt as text, without chat=True")
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if not is_conversation(messages):
        raise ArgumentError(f"a prompt is {shown(messages)}: expected a string or a list of messages with chat=True")
    return tokenizer.chat_template.render(messages, template=chat.template, tools=chat.tools, arguments=chat.arguments)


def max_chars(tokenizer: Tokenizer, max_input_len: int) -> int:
    """An upper bound of the characters of a text of ``max_input_len`` tokens."""
    return max_input_len * max(tokenizer.max_token_chars, _ROOMY_TOKEN_CHARS)


def check_chars(name: str, text: str, tokenizer: Tokenizer, max_input_len: int) -> None:
    """Raise LimitError for a text that is certainly too long, before it is tokenized: megabytes would take seconds."""
    if len(text) <= max_input_len * _ROOMY_TOKEN_CHARS:  # saves a search of the vocabulary for most prompts
        return
    most = max_chars(tokenizer, max_input_len)
    if len(text) > most:
        raise LimitError(
            f"{name} has {len(text):,} characters, which exceeds the {most:,} that max_input_len {max_input_len} "
            "tokens can hold: shorten it, or build the engine with a larger --max_input_len"
        )


def _as_array(name: str, prompt: Any) -> NDArray[Any]:
    if isinstance(prompt, str):
        raise ArgumentError("a prompt is str: strings and token ids do not mix")
    with suppress(TypeError):  # no length: a single value, which is an error below
        check_length(name, len(prompt), MAX_PROMPT_IDS, "token ids")
    try:
        return np.asarray(prompt)
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(f"{name} is not a list of token ids ({one_line(str(error))}): {_EXPECTED}") from error


def checked_ids(name: str, ids: NDArray[Any], vocab_size: int) -> NDArray[np.int32]:
    """A prompt as int32[prompt_len]. Raises ArgumentError for an empty prompt, or ids outside the vocabulary."""
    if ids.ndim == 0:
        raise ArgumentError(f"{name} is the single value {shown(ids.item())}: {_EXPECTED}; did you mean [prompt]?")
    if ids.size == 0:
        raise ArgumentError(f"{name} is empty: expected at least one token")
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise ArgumentError(
            f"{name} has shape {ids.shape} and dtype {ids.dtype}: expected one dimension of whole numbers"
        )
    outside = ids[(ids < 0) | (ids >= vocab_size)]
    if outside.size:
        raise ArgumentError(
            f"{name} holds the token id {outside[0]}: expected 0 to {vocab_size - 1}, the engine's vocabulary"
        )
    return ids.astype(np.int32)
