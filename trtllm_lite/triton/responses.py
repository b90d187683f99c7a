"""Makes the output tensors of a response of the model ``tensorrt_llm``."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.runtime.api.request_output import CompletionOutput, RequestOutput
from trtllm_lite.triton.requests import ParsedRequest


def response_arrays(request: ParsedRequest, output: RequestOutput) -> dict[str, NDArray[Any]]:
    """The outputs by name, of all sequences: only their new part if the request is streaming, else all.

    The lengths of sequences, which differ, are in ``sequence_length``; token ids are padded with the request's pad_id,
    and log probabilities and logits with 0. The first extent of every array is 1.
    """
    sequences, streaming = output.outputs, request.streaming
    prompt = request.prompt_ids if request.includes_prompt else []
    ids = [prompt + (entry.token_ids_diff if streaming else entry.token_ids) for entry in sequences]
    arrays = {
        "output_ids": _padded(ids, request.pad_id, np.int32),
        "sequence_length": np.array(list(map(len, ids)), np.int32),
        "cum_log_probs": _cumulative(request, sequences),
        "output_log_probs": _padded([_logprobs(entry, streaming) for entry in sequences], 0, np.float32),
        "context_logits": _no_logits(2) if output.context_logits is None else output.context_logits,
        "generation_logits": _generation_logits(sequences) if output.finished else _no_logits(3),
        "finish_reason": _strings(entry.finish_reason or "" for entry in sequences),
        "prompt_ids": np.array(prompt, np.int32),
        "generated_text": _strings(entry.text_diff if streaming else entry.text for entry in sequences),
    }
    return {name: array[np.newaxis] for name, array in arrays.items()}


def _strings(texts: Any) -> NDArray[np.object_]:
    return np.array([text.encode() for text in texts], np.object_)


def _padded(rows: Sequence[Sequence[Any]], padding: Any, dtype: Any) -> NDArray[Any]:
    padded = np.full((len(rows), max(map(len, rows))), padding, dtype)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    return padded


def _cumulative(request: ParsedRequest, sequences: Sequence[CompletionOutput]) -> NDArray[np.float32]:
    if request.params.logprobs is None:
        return np.empty(0, np.float32)
    return np.array([entry.cumulative_logprob or 0 for entry in sequences], np.float32)


def _logprobs(sequence: CompletionOutput, streaming: bool) -> list[float]:
    """The log probabilities of a sequence's tokens, which come first in their entries; none if not asked for."""
    entries = sequence.logprobs_diff if streaming else sequence.logprobs
    return [next(iter(entry.values())).logprob for entry in entries or []]


def _generation_logits(sequences: Sequence[CompletionOutput]) -> NDArray[np.float32]:
    """float32[sequences, generated, vocab]."""
    found = [entry.generation_logits for entry in sequences]
    rows = [logits for logits in found if logits is not None]
    if not rows:
        return _no_logits(3)
    padded = np.zeros((len(found), max(map(len, rows)), rows[0].shape[1]), np.float32)
    for target, logits in zip(padded, found, strict=True):
        if logits is not None:
            target[: len(logits)] = logits
    return padded


def _no_logits(num_axes: int) -> NDArray[np.float32]:
    return np.empty((0,) * num_axes, np.float32)
