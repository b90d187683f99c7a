"""Makes ModelRunner's results: arrays, texts, dictionaries."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.errors import ArgumentError
from trtllm_lite.runtime.api.outputs import Output
from trtllm_lite.runtime.session.prompts import Prompts

Rows = Sequence[Sequence[Output]]  # outputs by prompt and sequence


@dataclass(frozen=True)
class Extras:
    """The optional entries of the result dictionary that ``output_*`` arguments of ``ModelRunner.generate`` request."""

    context_logits: bool
    generation_logits: bool
    log_probs: bool
    cum_log_probs: bool

    def check(self, return_dict: bool) -> None:
        """Raise ArgumentError if an entry is requested although the result is no dictionary."""
        if any(vars(self).values()) and not return_dict:
            raise ArgumentError("logits and log probabilities need return_dict=True: pass it, or leave output_* out")

    def params(self) -> dict[str, Any]:
        """The fields of SamplingParams that make a request collect the entries."""
        return {
            "return_context_logits": bool(self.context_logits),
            "return_generation_logits": bool(self.generation_logits),
            "logprobs": 0 if self.log_probs or self.cum_log_probs else None,
        }


@dataclass(frozen=True)
class ResultForm:
    """Makes the result of one call of ``ModelRunner.generate`` for ``prompts``; that class describes the forms."""

    pad_id: int
    prompts: Prompts
    return_dict: bool
    extras: Extras

    def result(self, outputs: Sequence[Output], *, partial: bool) -> Any:
        """The result for ``outputs``, in the order of prompts; with ``partial``, texts have only their new parts."""
        count = len(outputs) // len(self.prompts.token_ids)
        rows = [outputs[start : start + count] for start in range(0, len(outputs), count)]
        if self.return_dict:
            return self._dictionary(rows)
        if not self.prompts.textual:
            return padded_output_ids(rows, self.pad_id)
        texts = texts_of(rows, partial=partial)
        return texts[0] if self.prompts.single else texts

    def _dictionary(self, rows: Rows) -> dict[str, Any]:
        params = rows[0][0].request.params
        result: dict[str, Any] = {
            "output_ids": padded_output_ids(rows, self.pad_id),
            "sequence_lengths": sequence_lengths(rows),
            "prompt_lengths": np.array([len(row[0].request.prompt_ids) for row in rows], np.int32),
            "finish_reasons": [[output.finish_reason and output.finish_reason.value for output in row] for row in rows],
        }
        if self.prompts.textual:
            result["texts"] = texts_of(rows, partial=False)
        if params.return_context_logits:
            result["context_logits"] = [row[0].handle.context_logits for row in rows]
        if params.return_generation_logits:
            result["generation_logits"] = [[_stack(output.generation_logits) for output in row] for row in rows]
        if params.use_beam_search:
            result["sequences_scores"] = np.array([[output.score for output in row] for row in rows], np.float32)
        if self.extras.log_probs:
            result["log_probs"] = log_probs(rows)
        if self.extras.cum_log_probs:
            result["cum_log_probs"] = np.array([[row.sum() for row in rows] for rows in log_probs(rows)], np.float32)
        return result


def padded_output_ids(rows: Rows, pad_id: int) -> NDArray[np.int32]:
    """int32[batch, sequences, longest]: prompt and generated ids of each output, then ``pad_id``."""
    lengths = sequence_lengths(rows)
    padded = np.full((*lengths.shape, int(np.max(lengths))), pad_id, np.int32)
    for index in np.ndindex(lengths.shape):
        output = rows[index[0]][index[1]]
        prompt_ids = output.request.prompt_ids
        padded[index][: len(prompt_ids)] = prompt_ids
        padded[index][len(prompt_ids) : lengths[index]] = output.token_ids
    return padded


def sequence_lengths(rows: Rows) -> NDArray[np.int32]:
    """int32[batch, sequences]: tokens of prompt and output together."""
    lengths = [[len(output.request.prompt_ids) + len(output.token_ids) for output in row] for row in rows]
    return np.array(lengths, np.int32)


def log_probs(rows: Rows) -> list[list[NDArray[np.float32]]]:
    """[batch][sequences] float32[generated]: natural logarithms of the generated tokens' probabilities."""
    return [[np.array([entry.logprob for entry in output.logprobs], np.float32) for output in row] for row in rows]


def texts_of(rows: Rows, *, partial: bool) -> list[Any]:
    """The text (with ``partial``, its new part) of each prompt's output; a list of texts if it has several outputs."""
    found = [[output.new_text if partial else output.text for output in row] for row in rows]
    return found if len(found[0]) > 1 else [row[0] for row in found]


def _stack(rows: list[NDArray[np.float32]]) -> NDArray[np.float32] | None:
    return np.stack(rows) if rows else None
