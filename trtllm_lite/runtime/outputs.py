"""What a request has produced so far, and how that is handed to the user."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.runtime.detokenizer import IncrementalDetokenizer
from trtllm_lite.runtime.request import FinishReason, Request, Response
from trtllm_lite.runtime.stop_words import StopSequenceFilter, StopTextFilter, StopWords
from trtllm_lite.runtime.tokenizer import Tokenizer


class Output:
    """Follows one request: its tokens, its text (given a tokenizer), and whether a stop word has come.

    The token ids hold all that was generated; the text ends before an end id or a stop word.
    """

    def __init__(self, request: Request, stop_words: StopWords, tokenizer: Tokenizer | None) -> None:
        self.request = request
        self.token_ids: list[int] = []
        self.text = ""
        self.new_text = ""
        self.finish_reason: FinishReason | None = None
        self.context_logits: NDArray[np.float32] | None = None
        self.generation_logits: list[NDArray[np.float32]] = []
        self._stop_sequences = StopSequenceFilter(stop_words.sequences)
        self._stop_texts = StopTextFilter(stop_words.texts)
        self._detokenizer = (
            None if tokenizer is None else IncrementalDetokenizer(tokenizer.decode, request.prompt_ids.tolist())
        )

    def push(self, response: Response) -> None:
        """Take in one generated token; sets ``finish_reason`` and ``new_text``."""
        self.token_ids.append(response.token_id)
        if response.context_logits is not None:
            self.context_logits = response.context_logits
        if response.generation_logits is not None:
            self.generation_logits.append(response.generation_logits)
        self.finish_reason = response.finish_reason
        # The end id is not part of the text even where the tokenizer does not count it as special.
        released = [] if response.finish_reason is FinishReason.END_ID else self._stop_sequences.push(response.token_id)
        self.new_text = self._push_text(released)
        if self._stop_sequences.stopped or self._stop_texts.stopped:
            self.finish_reason = FinishReason.STOP_WORDS
        if self.finish_reason is not None:
            self.new_text += self._finish_text()
        self.text += self.new_text

    def _push_text(self, token_ids: list[int]) -> str:
        if self._detokenizer is None or self._stop_texts.stopped:
            return ""
        return self._stop_texts.push("".join(self._detokenizer.push(token) for token in token_ids))

    def _finish_text(self) -> str:
        if self._detokenizer is None or self._stop_texts.stopped:
            return ""
        text = self._push_text(self._stop_sequences.finish())
        if not self._stop_texts.stopped:
            text += self._stop_texts.push(self._detokenizer.finish())
        if not self._stop_texts.stopped:
            return text + self._stop_texts.finish()
        self.finish_reason = FinishReason.STOP_WORDS
        return text


def padded_output_ids(outputs: Sequence[Output], pad_id: int) -> NDArray[np.int32]:
    """int32[batch, 1 beam, longest]: prompt and generated ids of each output, then ``pad_id``."""
    lengths = sequence_lengths(outputs)
    padded = np.full((len(outputs), 1, int(lengths.max())), pad_id, np.int32)
    for row, output in zip(padded[:, 0], outputs, strict=True):
        prompt_len = len(output.request.prompt_ids)
        row[:prompt_len] = output.request.prompt_ids
        row[prompt_len : prompt_len + len(output.token_ids)] = output.token_ids
    return padded


def sequence_lengths(outputs: Sequence[Output]) -> NDArray[np.int32]:
    """int32[batch, 1 beam]: tokens of prompt and output together."""
    return np.array([[len(output.request.prompt_ids) + len(output.token_ids)] for output in outputs], np.int32)


def as_dictionary(outputs: Sequence[Output], pad_id: int, with_text: bool) -> dict[str, Any]:
    """The result for ``return_dict=True``; see ``ModelRunner.generate``."""
    result: dict[str, Any] = {
        "output_ids": padded_output_ids(outputs, pad_id),
        "sequence_lengths": sequence_lengths(outputs),
        "finish_reasons": [[output.finish_reason and output.finish_reason.value] for output in outputs],
    }
    if with_text:
        result["texts"] = [output.text for output in outputs]
    if any(output.request.context_logits for output in outputs):
        result["context_logits"] = [output.context_logits for output in outputs]
    if any(output.request.generation_logits for output in outputs):
        result["generation_logits"] = [[_stack(output.generation_logits)] for output in outputs]
    return result


def _stack(rows: list[NDArray[np.float32]]) -> NDArray[np.float32] | None:
    return np.stack(rows) if rows else None
