"""Prompts in any of their forms, turned into checked token ids."""

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.errors import ArgumentError, LimitError
from trtllm_lite.runtime.session.limits import RunnerLimits
from trtllm_lite.runtime.text.tokenizer import Tokenizer

_EXPECTED = "expected a list of prompts: token-id lists, strings, or (with chat=True) strings or lists of messages"


@dataclass(frozen=True)
class Prompts:
    """``token_ids`` are int32[prompt_len] arrays; ``texts`` what was tokenized, if text came in: then text goes out.

    ``single`` says that one bare string came in, so one bare string goes out.
    """

    token_ids: list[NDArray[np.int32]]
    texts: list[str] | None
    single: bool

    @property
    def textual(self) -> bool:
        """Whether text came in."""
        return self.texts is not None


def parse_prompts(value: Any, chat: bool, tokenizer: Tokenizer | None, vocab_size: int) -> Prompts:
    """Token ids of ``value``: see ``ModelRunner.generate`` for its forms.

    Raises ArgumentError for another form, a token id outside the vocabulary, an empty prompt, or text for an engine
    without a tokenizer.
    """
    single = isinstance(value, str) or (chat and is_conversation(value))
    prompts = [value] if single else _as_list(value)
    if not prompts:
        raise ArgumentError(f"there are no prompts: {_EXPECTED}")
    texts = None
    if chat or isinstance(prompts[0], str):
        if tokenizer is None:
            raise ArgumentError(
                "this engine has no tokenizer: pass lists of token ids to `LLM` or `ModelRunner`, give `LLM` a "
                "directory that holds tokenizer.json as tokenizer=, or put that file beside the model, convert and "
                "build again"
            )
        texts = [_as_text(prompt, chat, tokenizer) for prompt in prompts]
        # A chat template spells out every special token itself.
        arrays = [np.asarray(tokenizer.encode(text, add_special_tokens=not chat)) for text in texts]
    else:
        arrays = [_as_array(prompt) for prompt in prompts]
    return Prompts([_checked(row, ids, vocab_size) for row, ids in enumerate(arrays)], texts, single)


def as_texts(value: Any) -> Any:
    """``value`` unchanged. Raises ArgumentError unless it is a string or a non-empty list of strings."""
    if isinstance(value, str) or (isinstance(value, Sequence) and value and all(isinstance(x, str) for x in value)):
        return value
    raise ArgumentError(f"texts is {value!r}: expected a string or a list of strings")


def check_prompt_len(name: str, prompt_len: int, limits: RunnerLimits) -> None:
    """Raise LimitError if a prompt, ``name`` in messages, is too long; nothing is ever cut."""
    if prompt_len > limits.max_input_len:
        raise LimitError(
            f"{name} has {prompt_len} tokens, which exceeds max_input_len {limits.max_input_len}: shorten it, or build "
            f"the engine with --max_input_len {prompt_len}"
        )
    if prompt_len >= limits.max_seq_len:
        raise LimitError(
            f"{name} has {prompt_len} tokens, which leaves no room for an answer within max_seq_len "
            f"{limits.max_seq_len}: shorten it, or build the engine with a larger --max_seq_len"
        )


def output_len(name: str, prompt_len: int, wanted: int | None, limits: RunnerLimits) -> int:
    """How many tokens the prompt ``name`` may generate: ``wanted``, or (None) as many as fit.

    Raises LimitError if ``wanted`` is more than fits: nothing is ever cut.
    """
    room = {
        "max_seq_len": (limits.max_seq_len - prompt_len, "build the engine with a larger --max_seq_len"),
        "max_output_len": (limits.max_output_len, "load the engine with a larger max_output_len"),
        "the KV cache": (limits.cache_len - prompt_len, "load the engine with a larger KV cache"),
    }
    bounded_by, (most, remedy) = min(room.items(), key=lambda item: item[1][0])
    if most < 1 or (wanted is not None and wanted > most):
        bounds = {"max_output_len": limits.max_output_len, "max_seq_len": limits.max_seq_len}
        raise LimitError(
            f"{name} has {prompt_len} tokens and asks for {wanted or 1} more, which exceeds {bounded_by} "
            f"({bounds.get(bounded_by, limits.cache_len)} tokens): ask for at most {max(most, 0)}, shorten the prompt, "
            f"or {remedy}"
        )
    return most if wanted is None else wanted


def is_token_ids(value: Any) -> bool:
    """Whether ``value`` is one prompt of token ids."""
    is_list = isinstance(value, Sequence | np.ndarray) and not isinstance(value, str)
    return is_list and len(value) > 0 and all(isinstance(token, numbers.Integral) for token in value)


def is_conversation(value: Any) -> bool:
    """Whether ``value`` is one prompt of chat messages."""
    return isinstance(value, Sequence) and len(value) > 0 and all(isinstance(item, Mapping) for item in value)


def _as_list(value: Any) -> list[Any]:
    if isinstance(value, Mapping) or not hasattr(value, "__len__") or not hasattr(value, "__getitem__"):
        raise ArgumentError(f"the prompts are {type(value).__name__}: {_EXPECTED}")
    return [value[row] for row in range(len(value))]


def _as_text(prompt: Any, chat: bool, tokenizer: Tokenizer) -> str:
    if not chat:
        if not isinstance(prompt, str):
            raise ArgumentError(f"a prompt is {type(prompt).__name__} among strings: {_EXPECTED}")
        return prompt
    if tokenizer.chat_template is None:
        raise ArgumentError("this model has no chat template: pass the whole prompt as text, without chat=True")
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if not is_conversation(messages):
        raise ArgumentError(f"a prompt is {messages!r}: expected a string or a list of messages with chat=True")
    return tokenizer.chat_template.render(messages)


def _as_array(prompt: Any) -> NDArray[Any]:
    if isinstance(prompt, str | Mapping):
        hint = "messages need chat=True" if isinstance(prompt, Mapping) else "strings and token ids do not mix"
        raise ArgumentError(f"a prompt is {type(prompt).__name__}: {hint}")
    try:
        return np.asarray(prompt)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"a prompt is not a list of token ids ({error}): {_EXPECTED}") from error


def _checked(row: int, ids: NDArray[Any], vocab_size: int) -> NDArray[np.int32]:
    if ids.ndim == 0:
        raise ArgumentError(f"prompt {row} is the single value {ids}: {_EXPECTED}; did you mean [prompt]?")
    if ids.size == 0:
        raise ArgumentError(f"prompt {row} is empty: expected at least one token")
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise ArgumentError(
            f"prompt {row} has shape {ids.shape} and dtype {ids.dtype}: expected one dimension of whole numbers"
        )
    outside = ids[(ids < 0) | (ids >= vocab_size)]
    if outside.size:
        raise ArgumentError(
            f"prompt {row} holds the token id {outside[0]}: expected 0 to {vocab_size - 1}, the engine's vocabulary"
        )
    return ids.astype(np.int32)
