"""Defines RequestOutput: the continuations of a prompt so far, as plain data that can be pickled and copied."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.common.printable import printable
from trtllm_lite.common.units import counted
from trtllm_lite.errors import TrtllmLiteError, shown
from trtllm_lite.runtime.api.computed_later import ComputedLater
from trtllm_lite.runtime.api.outputs import Output
from trtllm_lite.runtime.session.request_handle import RequestHandle


@dataclass(frozen=True)
class Logprob:
    """Natural logarithm of a token's probability, and its rank (1: the likeliest)."""

    logprob: float
    rank: int


@dataclass(frozen=True)
class CompletionOutput(ComputedLater):
    """One continuation.

    ``token_ids`` hold all that was generated; ``text`` ends before the stop word or end token (see SamplingParams).
    ``text_diff``, ``token_ids_diff`` and ``logprobs_diff`` are the parts that are new since the previous output; in a
    stream, the whole text and lists are computed only when they are read. ``logprobs`` has, for each
    token, {token id: Logprob} of that token and the likeliest ones, and is None unless requested.
    ``cumulative_logprob`` is the sum over the generated tokens; it is set if ``logprobs`` is, and for a beam search.
    ``score`` is the score that a beam search ranked the continuation by. ``finish_reason`` is None while the
    continuation runs, then "stop", "length", "cancelled", "timeout" or "error"; ``stop_reason`` is the stop string or
    the token (sequence) that stopped it, None for the model's end token. ``generation_logits`` is float32[generated,
    vocab] if asked for.
    """

    index: int
    text: str
    token_ids: list[int]
    text_diff: str
    token_ids_diff: list[int]
    cumulative_logprob: float | None
    logprobs: list[dict[int, Logprob]] | None
    logprobs_diff: list[dict[int, Logprob]] | None
    finish_reason: str | None
    stop_reason: str | int | tuple[int, ...] | None
    generation_logits: NDArray[np.float32] | None
    score: float | None

    def __repr__(self) -> str:
        """The fields that people look for; ``dataclasses.asdict`` has everything."""
        tokens = counted(len(self.token_ids), "token")
        return f"<CompletionOutput {self.index}: {shown(self.text)}, {tokens}, finish_reason={self.finish_reason!r}>"


@dataclass(frozen=True)
class RequestMetrics:
    """The times of a request's events, in seconds from its submission.

    ``seconds_per_token`` is a mean over the tokens after the first. ``num_cached_tokens`` counts the tokens of the
    prompt that were in the KV cache already.
    """

    queue_seconds: float
    first_token_seconds: float
    seconds_per_token: float
    total_seconds: float
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    num_preemptions: int


@dataclass(frozen=True)
class RequestOutput(ComputedLater):
    """The continuations of a prompt so far; ``finished`` says whether they have ended.

    ``prompt`` is the prompt's text, None for token ids. ``prompt_logprobs`` has an entry for each token of the prompt,
    None for the first; ``context_logits`` is float32[prompt_len, vocab]; both are None unless requested. ``metrics``
    has the times of the first continuation, and is None until that has ended. ``num_truncated_tokens`` is how many
    tokens were dropped from the start of the prompt. ``error`` is the error that ended the request, or None.
    """

    request_id: int
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    context_logits: NDArray[np.float32] | None
    metrics: RequestMetrics | None
    num_truncated_tokens: int
    error: TrtllmLiteError | None

    def __repr__(self) -> str:
        """The fields that people look for; ``dataclasses.asdict`` has everything."""
        parts = [f"prompt of {counted(len(self.prompt_token_ids), 'token')}: {shown(self.prompt)}", repr(self.outputs)]
        parts += ["finished" if self.finished else "unfinished", *([] if self.error is None else [repr(self.error)])]
        return f"<RequestOutput {self.request_id}: {', '.join(parts)}>"

    def _repr_html_(self) -> str:
        """The prompt and its continuations, for notebooks."""
        prompt = self.prompt_token_ids if self.prompt is None else self.prompt
        rows = "".join(map(_row_html, self.outputs))
        error = "" if self.error is None else f"<p>{escape(str(self.error))}"
        return f"{_cell_html(str(prompt))}<table>{rows}</table>{_metrics_html(self.metrics)}{error}"


def _row_html(output: CompletionOutput) -> str:
    ended = "running" if output.finish_reason is None else output.finish_reason
    about = f"{output.index}<br>{counted(len(output.token_ids), 'token')}<br>{escape(ended)}"
    return f'<tr><th>{about}<td style="text-align:left">{_cell_html(output.text or repr(output.token_ids))}'


def _cell_html(text: str) -> str:
    """The escaped HTML of a text that keeps its line breaks, and wraps long lines at the end of the cell."""
    return f'<pre style="white-space:pre-wrap">{escape(printable(text))}</pre>'


def _metrics_html(metrics: RequestMetrics | None) -> str:
    if metrics is None:
        return ""
    first, step = metrics.first_token_seconds * 1e3, metrics.seconds_per_token * 1e3
    return f"<p>first token after {first:.1f} ms, then {step:.2f} ms a token"


def metrics_of(handle: RequestHandle) -> RequestMetrics | None:
    """The metrics of a request that has ended."""
    if handle.timings is None:
        return None
    return RequestMetrics(**{field.name: getattr(handle.timings, field.name) for field in fields(RequestMetrics)})


def completion_of(index: int, output: Output, num_logprobs: int | None) -> CompletionOutput:
    reason = "error" if output.handle.error is not None else None
    if output.finish_reason is not None:
        reason = output.finish_reason.word
    tokens, rows, pieces, logits = output.token_ids, output.logprobs, output.pieces, output.generation_logits
    num_tokens, num_pieces, num_logits = len(tokens), len(pieces), len(logits)
    begin = num_tokens - output.num_new_tokens

    def logprobs(first: int) -> list[dict[int, Logprob]] | None:
        return None if num_logprobs is None else _all_logprobs(tokens[first:num_tokens], rows[first:num_tokens])

    return CompletionOutput.with_later(
        {
            "text": lambda: "".join(pieces[:num_pieces]),
            "token_ids": lambda: tokens[:num_tokens],
            "logprobs": lambda: logprobs(0),
            "generation_logits": lambda: np.stack(logits[:num_logits]) if num_logits else None,
        },
        index=index,
        text_diff=output.new_text,
        token_ids_diff=tokens[begin:],
        logprobs_diff=logprobs(begin),
        cumulative_logprob=output.cumulative_logprob,
        finish_reason=reason,
        stop_reason=output.handle.stop_reason(tokens[-1] if tokens else None) if reason == "stop" else None,
        score=output.score,
    )


def _all_logprobs(tokens: Sequence[int], rows: Sequence[Any]) -> list[dict[int, Logprob]]:
    return list(map(logprobs_of, tokens, rows))


def logprobs_of(token: int, row: Any) -> dict[int, Logprob]:
    """Logprobs of the chosen token, then of the likeliest tokens; ``row`` is a ``_core.sampling.RowLogprobs``."""
    top = {other: Logprob(logprob, rank) for rank, (other, logprob) in enumerate(row.top, 1)}
    return {token: Logprob(row.logprob, row.rank)} | {other: entry for other, entry in top.items() if other != token}


def prompt_logprobs_of(handle: RequestHandle, prompt_ids: list[int]) -> Callable[[], Any]:
    """A function that returns the prompt's log probabilities, None unless requested; it keeps no ``handle`` alive."""
    rows, wanted = handle.prompt_logprobs, handle.request.params.prompt_logprobs is not None
    num_rows = len(rows)
    return lambda: [None, *_all_logprobs(prompt_ids[1:], rows[:num_rows])] if wanted else None
