"""ModelRunner: load an engine, generate. The names are those of TensorRT-LLM's ModelRunner."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trtllm_lite.errors import ArgumentError
from trtllm_lite.runtime import options
from trtllm_lite.runtime.arguments import FROM_DIR, GENERATE, reject_unsupported
from trtllm_lite.runtime.batching import BatchLoop
from trtllm_lite.runtime.limits import OPTION_NAMES, RunnerOptions
from trtllm_lite.runtime.outputs import Output, as_dictionary, padded_output_ids
from trtllm_lite.runtime.prompts import Prompts, as_texts, check_limits, output_len, parse_prompts
from trtllm_lite.runtime.request import Request
from trtllm_lite.runtime.session import Session, open_session
from trtllm_lite.runtime.stop_words import StopWords, parse_stop_words

_FROM_DIR_NAMES = ("engine_dir", "rank", *OPTION_NAMES)
_GENERATE_NAMES = (
    *("batch_input_ids", "texts", "chat", "max_new_tokens", "end_id", "pad_id", "stop_words_list", "streaming"),
    *("temperature", "top_k", "top_p", "min_p", "random_seed"),
    *("return_dict", "output_context_logits", "output_generation_logits"),
)


class ModelRunner:
    """Runs one engine. Threads may share a runner; generators that are dropped give their memory back."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.tokenizer = session.tokenizer
        self.limits = session.limits

    @classmethod
    def from_dir(cls, engine_dir: str | Path, rank: int = 0, **arguments: Any) -> "ModelRunner":
        """Load the engine of ``rank`` from ``engine_dir``. Nothing is compiled; the file is mapped and checked.

        Further arguments may tighten what the engine was built for:

        - ``max_batch_size``, ``max_input_len``, ``max_seq_len``, ``max_num_tokens``, ``max_output_len``: limits
        - ``max_tokens_in_paged_kv_cache``: tokens that the KV cache holds, all sequences together
        - ``kv_cache_free_gpu_memory_fraction``: share of the device's free memory that the KV cache may take (the
          device is the host here)
        - ``num_threads``: threads that compute; all cores by default

        Raises EngineError (no engine there, damaged, of another version), LimitError (an option above the engine's
        limit), ArgumentError (an argument that is unknown or not supported).
        """
        known = {name: arguments.pop(name) for name in OPTION_NAMES if name in arguments}
        reject_unsupported("ModelRunner.from_dir", arguments, FROM_DIR, _FROM_DIR_NAMES)
        session = open_session(engine_dir, rank, RunnerOptions(**known))
        _warn_of_ignored_defaults(session.manifest.model.generation)
        return cls(session)

    def generate(
        self,
        batch_input_ids: Any = None,
        *,
        texts: Any = None,
        chat: bool = False,
        max_new_tokens: Any = None,
        end_id: Any = None,
        pad_id: int | None = None,
        temperature: Any = None,
        top_k: Any = None,
        top_p: Any = None,
        min_p: Any = None,
        random_seed: Any = None,
        stop_words_list: Any = None,
        streaming: bool = False,
        return_dict: bool = False,
        output_context_logits: bool = False,
        output_generation_logits: bool = False,
        **others: Any,
    ) -> Any:
        """Continue prompts.

        Prompts come as ``batch_input_ids``: a list of token-id lists (or arrays, or tensors), or of strings; or as
        ``texts``, strings only. One bare string is a batch of one. With ``chat=True`` a prompt is a user's message, or
        a list of messages ({"role", "content"}), and goes through the model's chat template.

        Arguments below marked * take one value, or a list with one for each prompt.

        - ``max_new_tokens``*: None means as many as fit into max_seq_len
        - ``end_id``*: None means the model's end-of-sequence tokens; -1 means not to stop at them
        - ``pad_id``: fills the ends of shorter rows of ``output_ids``; default: the model's
        - ``temperature``* (0 = greedy), ``top_k``*, ``top_p``*, ``min_p``*: default: the model's generation_config, or
          greedy; ``random_seed``*: the same seed gives the same tokens whatever else is in the batch
        - ``stop_words_list``: strings or token-id lists for all prompts, or a list of them for each prompt
        - ``output_context_logits`` (engines built with --gather_context_logits), ``output_generation_logits``: with
          ``return_dict``

        Returns int32[batch, 1 beam, longest] for token ids: prompt and generated ids (end ids and stop words included),
        padded with ``pad_id``. For strings: their continuations (end ids and stop words excluded); a bare string for a
        bare string. With ``return_dict=True``: a dictionary of ``output_ids`` (that array), ``sequence_lengths``
        int32[batch, 1], ``finish_reasons`` [batch][1] (end_id, stop_words, length), ``texts`` (for strings),
        ``context_logits`` [batch] float32[prompt_len, vocab], ``generation_logits`` [batch][1] float32[generated,
        vocab].

        With ``streaming=True``, an iterator of partial results, one for each step that generated something: arrays and
        dictionaries hold everything so far, strings only what is new. Closing it cancels the rest.

        Raises, before anything runs: LimitError (batch, prompt or output too long), ArgumentError (anything else).
        """
        reject_unsupported("generate", others, GENERATE, _GENERATE_NAMES)
        prompts = self._parse_prompts(batch_input_ids, texts, chat)
        draws = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "random_seed": random_seed}
        wants = self._check_logits(output_context_logits, output_generation_logits, return_dict)
        requests = self._requests(prompts, max_new_tokens, end_id, draws, wants)
        stop_words = parse_stop_words(stop_words_list, len(requests))
        outputs = self._outputs(requests, stop_words, prompts.textual)
        pad = self._pad_id(pad_id)
        steps = self._run(outputs)
        if streaming:
            return (_result(outputs, prompts, pad, return_dict, partial=True) for _ in steps)
        for _ in steps:
            pass
        return _result(outputs, prompts, pad, return_dict, partial=False)

    def _parse_prompts(self, batch_input_ids: Any, texts: Any, chat: bool) -> Prompts:
        if (batch_input_ids is None) == (texts is None):
            raise ArgumentError("generate needs either batch_input_ids or texts: pass one of them")
        value = batch_input_ids if texts is None else as_texts(texts)
        prompts = parse_prompts(value, chat, self.tokenizer, self.session.manifest.model.vocab_size)
        check_limits(prompts.token_ids, self.limits)
        return prompts

    def _check_logits(self, context: bool, generation: bool, return_dict: bool) -> tuple[bool, bool]:
        if (context or generation) and not return_dict:
            raise ArgumentError("logits come with return_dict=True only: pass it, or leave output_*_logits out")
        if context and not self.session.manifest.gather_context_logits:
            raise ArgumentError(
                "this engine computes the logits of the last prompt token only: for output_context_logits, build it "
                "with --gather_context_logits"
            )
        return bool(context), bool(generation)

    def _requests(
        self, prompts: Prompts, max_new_tokens: Any, end_id: Any, draws: dict[str, Any], wants: tuple[bool, bool]
    ) -> list[Request]:
        model, batch_size = self.session.manifest.model, len(prompts.token_ids)
        end_ids = options.end_ids(end_id, batch_size, model.eos_token_ids, model.vocab_size)
        samplings = options.samplings(draws, batch_size, model.generation)
        wanted = options.per_request("max_new_tokens", max_new_tokens, batch_size)
        return [
            Request(ids, output_len(row, len(ids), wanted[row], self.limits), end_ids[row], samplings[row], *wants)
            for row, ids in enumerate(prompts.token_ids)
        ]

    def _outputs(self, requests: list[Request], stop_words: list[StopWords], textual: bool) -> list[Output]:
        if self.tokenizer is None and any(words.texts for words in stop_words):
            raise ArgumentError("this engine has no tokenizer: give stop words as token ids")
        return [
            Output(request, words, self.tokenizer if textual or words.texts else None)
            for request, words in zip(requests, stop_words, strict=True)
        ]

    def _pad_id(self, pad_id: int | None) -> int:
        """``pad_id``, else the model's padding token, else its first end token, else 0."""
        model = self.session.manifest.model
        if pad_id is not None:
            return options.whole_number("pad_id", pad_id, -1, 2**31 - 1)
        if model.pad_token_id is not None:
            return model.pad_token_id
        return model.eos_token_ids[0] if model.eos_token_ids else 0

    def _run(self, outputs: list[Output]) -> Iterator[None]:
        """Generate; yields after each step that produced tokens. Closing the iterator returns the cache blocks."""
        with BatchLoop(self.session) as loop:
            running = {loop.enqueue_request(output.request): output for output in outputs}
            while running:
                responses = loop.await_responses()
                for output in outputs:
                    output.new_text = ""
                for response in responses:
                    output = running[response.request_id]
                    output.push(response)
                    if output.finish_reason is not None:
                        loop.cancel_request(response.request_id)
                        del running[response.request_id]
                if responses:
                    yield


def _result(outputs: list[Output], prompts: Prompts, pad_id: int, return_dict: bool, partial: bool) -> Any:
    if return_dict:
        return as_dictionary(outputs, pad_id, prompts.textual)
    if not prompts.textual:
        return padded_output_ids(outputs, pad_id)
    texts = [output.new_text if partial else output.text for output in outputs]
    return texts[0] if prompts.single else texts


def _warn_of_ignored_defaults(generation: dict[str, Any]) -> None:
    penalty = generation.get("repetition_penalty", 1.0)
    if penalty != 1.0:
        warnings.warn(
            f"this model's generation defaults ask for repetition_penalty={penalty}, which is not applied yet: outputs "
            "may repeat themselves more than the model's authors intended",
            stacklevel=3,
        )
