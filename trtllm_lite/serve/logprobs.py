"""Writes log probabilities in the forms of OpenAI's two APIs."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from trtllm_lite.runtime.api.request_output import Logprob
from trtllm_lite.runtime.text.tokenizer import Tokenizer

Row = tuple[int, Mapping[int, Logprob] | None]
"""A token, and the log probabilities of it and of the likeliest ones, in order; None for a prompt's first token."""
_LEAST = -9999.0  # JSON has no infinity; the value is vLLM's
_KEPT_TOKENS = 1 << 16


class TokenTexts:
    """Names tokens in log probabilities: by their texts, or (``as_ids``) as ``token_id:N``."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        if tokenizer is not None:
            self._text = lru_cache(maxsize=_KEPT_TOKENS)(lambda token: tokenizer.decode_all([token]))
        else:
            self._text = _as_id  # type: ignore[assignment]

    def name(self, token: int, *, as_ids: bool) -> str:
        """The name of one token."""
        return _as_id(token) if as_ids else self._text(token)


def _as_id(token: int) -> str:
    return f"token_id:{token}"


def chat_logprobs(rows: Sequence[Row], num_top: int, texts: TokenTexts, *, as_ids: bool) -> dict[str, Any]:
    """``logprobs`` of a choice of a chat, with the ``num_top`` likeliest tokens at each position."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        name = texts.name(token, as_ids=as_ids)
        return {"token": name, "logprob": max(logprob, _LEAST), "bytes": list(name.encode())}

    content = []
    for token, found in rows:
        assert found is not None
        top = [entry(other, known.logprob) for other, known in found.items() if known.rank <= num_top]
        content.append({**entry(token, found[token].logprob), "top_logprobs": top[:num_top]})
    return {"content": content}


def completion_logprobs(
    rows: Sequence[Row], num_top: int, texts: TokenTexts, offset: int, *, as_ids: bool
) -> dict[str, Any]:
    """``logprobs`` of a choice of a completion; ``offset`` is the position of its text in the whole text."""
    names = [texts.name(token, as_ids=as_ids) for token, _ in rows]
    offsets = []
    for name in names:
        offsets.append(offset)
        offset += len(name)
    return {
        "tokens": names,
        "token_logprobs": [None if found is None else max(found[token].logprob, _LEAST) for token, found in rows],
        "top_logprobs": [None if found is None else _top(found, num_top, texts, as_ids) for _, found in rows],
        "text_offset": offsets,
    }


def _top(found: Mapping[int, Logprob], num_top: int, texts: TokenTexts, as_ids: bool) -> dict[str, float]:
    # The chosen token is listed even if it is not among the likeliest, as in OpenAI's API.
    kept = list(found.items())[: num_top + 1]
    return {texts.name(token, as_ids=as_ids): max(known.logprob, _LEAST) for token, known in kept}


def prompt_rows(rows: Sequence[Any]) -> list[Any]:
    """vLLM's ``prompt_logprobs``: for each token of the prompt, logprobs by token id."""
    return [
        None
        if row is None
        else {str(token): {"logprob": found.logprob, "rank": found.rank} for token, found in row.items()}
        for row in rows
    ]
