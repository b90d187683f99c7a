"""Defines ModelRunner, which loads an engine and generates; it has the interface of TensorRT-LLM's ModelRunner."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from trtllm_lite.errors import ArgumentError, LimitError
from trtllm_lite.foreign_names import calls
from trtllm_lite.foreign_names.arguments import reject_unsupported
from trtllm_lite.runtime.api.configs import speculation_of
from trtllm_lite.runtime.api.lora_arguments import chosen_loras, loras_of
from trtllm_lite.runtime.api.outputs import Output, outputs_of, steps
from trtllm_lite.runtime.api.result_form import Extras, ResultForm
from trtllm_lite.runtime.api.sampling_arguments import ARGUMENTS, make_requests, with_config
from trtllm_lite.runtime.lora.request import LoRARequest
from trtllm_lite.runtime.session.config import KvCacheConfig, SchedulerConfig, SpeculativeConfig
from trtllm_lite.runtime.session.experts import ExpertCounts
from trtllm_lite.runtime.session.guided_decoding import GuidedDecodingParams
from trtllm_lite.runtime.session.limits import RunnerOptions
from trtllm_lite.runtime.session.opening import open_session
from trtllm_lite.runtime.session.prompts import Chat, Prompt, Prompts, as_texts, parse_prompts
from trtllm_lite.runtime.session.session import Session
from trtllm_lite.runtime.session.stats import Stats
from trtllm_lite.runtime.text.words import Word
from trtllm_lite.runtime.values import whole_number

# An argument of these types is one value for all prompts, or a list with a value for each prompt; None is the default.
Ints = int | Sequence[int | None] | NDArray[Any] | None
Floats = float | Sequence[float | None] | NDArray[Any] | None
WordLists = str | Sequence[Word] | Sequence[Sequence[Word] | None] | None


class ModelRunner:
    """Runs one engine. Threads may share a runner. Dropping a streaming iterator ends its requests.

    The sampling arguments of :meth:`generate`, one value for all prompts or, marked *, a list with one for each:

    - ``max_new_tokens``*: None means as many as fit into max_seq_len
    - ``end_id``*: None means the model's end-of-sequence tokens; -1 means not to stop at them
    - ``top_k``*, ``top_p``*, ``top_n_sigma``*: draw from the likeliest tokens; without any of them the likeliest one is
      taken, as TensorRT-LLM does, whatever the model's generation_config says. ``temperature``* (0 = greedy) and
      ``min_p``* apply to draws;
      ``random_seed``*: the same seed gives the same tokens whatever else is in the batch
    - ``repetition_penalty``* (default: the model's), ``presence_penalty``*, ``frequency_penalty``*
    - ``stop_words_list``*, ``bad_words_list``*: strings or token-id lists
    - ``lora_uids``*: which adapter of ``lora_dir`` a prompt runs with, "0" for the first; "-1" and None for none
    - ``guided_decoding``*: GuidedDecodingParams, what the generated text must be
    - ``num_return_sequences``: how many outputs to draw for each prompt
    - ``num_beams``: search with so many beams instead, and return the best num_return_sequences (default: all);
      ``length_penalty``, ``early_stopping``: see SamplingParams
    - ``pad_id``: fills the ends of shorter rows of ``output_ids``; default: the model's

    For prompts of token ids :meth:`generate` returns an array, ``output_ids`` int32[batch, sequences, longest]: the ids
    of each prompt and of its continuation (end ids and stop words included), padded with ``pad_id``. For prompts of
    text it returns the continuations as strings (end ids and stop words excluded), or as lists of
    ``num_return_sequences`` strings. With ``return_dict=True`` it returns a dictionary:

    - ``output_ids``, ``sequence_lengths`` int32[batch, sequences] (prompts included), ``prompt_lengths`` int32[batch],
      and for prompts of text ``texts``
    - ``finish_reasons`` [batch][sequences]: end_id, stop_words, length
    - ``context_logits`` [batch] float32[prompt_len, vocab]
    - ``generation_logits`` [batch][sequences] float32[generated, vocab]
    - ``log_probs`` [batch][sequences] float32[generated], ``cum_log_probs`` float32[batch, sequences]
    - ``sequences_scores`` float32[batch, sequences], the scores by which a beam search ranked its results
    """

    def __init__(self, session: Session, loras: Sequence[LoRARequest] = ()) -> None:
        self.session = session
        self.loras = loras
        self.tokenizer = session.tokenizer
        self.limits = session.limits

    @classmethod
    def from_dir(
        cls,
        engine_dir: str | Path,
        rank: int = 0,
        *,
        lora_dir: str | Path | Sequence[str | Path] | None = None,
        max_loras: int | None = None,
        max_cpu_loras: int | None = None,
        max_batch_size: int | None = None,
        max_input_len: int | None = None,
        max_seq_len: int | None = None,
        max_num_tokens: int | None = None,
        max_output_len: int | None = None,
        max_beam_width: int | None = None,
        max_tokens_in_paged_kv_cache: int | None = None,
        kv_cache_free_gpu_memory_fraction: float | None = None,
        kv_cache_enable_block_reuse: bool = False,
        host_cache_size: int | None = None,
        capacity_scheduler_policy: str = "GUARANTEED_NO_EVICT",
        speculative_config: SpeculativeConfig | Mapping[str, Any] | None = None,
        enable_chunked_context: bool = True,
        num_threads: int | None = None,
        device_ids: Sequence[int] | None = None,
        **others: Any,
    ) -> "ModelRunner":
        """Load all ranks of the engine in ``engine_dir``. Nothing is compiled; the files are mapped and checked.

        ``rank`` is 0: one process runs all ranks. ``device_ids`` are the numbers of the ranks' GPUs, by default the
        first GPUs.

        ``lora_dir`` is a directory of an adapter in PEFT's format, or a list of such directories; ``lora_uids`` of
        :meth:`generate` refers to them by index, from "0" on. An adapter is read when a request first uses it. At most
        ``max_loras`` are in use at once, ``max_cpu_loras`` in memory.

        ``max_batch_size`` to ``max_beam_width`` tighten limits that the engine was built for. The options after them
        are fields of KvCacheConfig (``max_tokens_in_paged_kv_cache`` is its ``max_tokens``), SchedulerConfig and
        RunnerOptions; ``speculative_config`` is a SpeculativeConfig or a dictionary of its fields. Other arguments of
        TensorRT-LLM's function are accepted only with their neutral values.

        Raises EngineError (no engine there, damaged, of another version), DeviceError (no GPU, or a GPU that the engine
        was not built for), LimitError (an option above the engine's limit, too little memory), ArgumentError (an
        argument that is unknown or not supported).
        """
        reject_unsupported("ModelRunner.from_dir", others, calls.FROM_DIR, _names(cls.from_dir))
        options = RunnerOptions(
            max_batch_size=max_batch_size,
            max_input_len=max_input_len,
            max_seq_len=max_seq_len,
            max_num_tokens=max_num_tokens,
            max_output_len=max_output_len,
            max_beam_width=max_beam_width,
            kv_cache=KvCacheConfig(
                enable_block_reuse=kv_cache_enable_block_reuse,
                max_tokens=max_tokens_in_paged_kv_cache,
                free_gpu_memory_fraction=kv_cache_free_gpu_memory_fraction,
                host_cache_size=host_cache_size,
            ),
            speculation=speculation_of(speculative_config),
            scheduler=SchedulerConfig(capacity_scheduler_policy=capacity_scheduler_policy),
            enable_chunked_context=enable_chunked_context,
            num_threads=num_threads,
            max_loras=max_loras,
            max_cpu_loras=max_cpu_loras,
            device_ids=None if device_ids is None else tuple(device_ids),
        )
        loras = loras_of(lora_dir)
        session = open_session(engine_dir, rank, options)
        if loras:
            session.check_takes_adapters("lora_dir")
        return cls(session, loras)

    def generate(
        self,
        batch_input_ids: str | Sequence[Prompt] | NDArray[Any] | None = None,
        *,
        texts: str | Sequence[str] | None = None,
        chat: bool = False,
        chat_template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        streaming: bool = False,
        return_dict: bool = False,
        output_context_logits: bool = False,
        output_generation_logits: bool = False,
        output_log_probs: bool = False,
        output_cum_log_probs: bool = False,
        sampling_config: Any = None,
        max_new_tokens: Ints = None,
        end_id: Ints = None,
        temperature: Floats = None,
        top_n_sigma: Floats = None,
        top_k: Ints = None,
        top_p: Floats = None,
        min_p: Floats = None,
        random_seed: Ints = None,
        repetition_penalty: Floats = None,
        presence_penalty: Floats = None,
        frequency_penalty: Floats = None,
        stop_words_list: WordLists = None,
        bad_words_list: WordLists = None,
        lora_uids: str | Sequence[str | None] | None = None,
        guided_decoding: GuidedDecodingParams | Sequence[GuidedDecodingParams | None] | None = None,
        num_return_sequences: int | None = None,
        num_beams: int | None = None,
        length_penalty: float | None = None,
        early_stopping: bool | str | None = None,
        pad_id: int | None = None,
        **others: Any,
    ) -> Any:
        """Continue prompts.

        Prompts come as ``batch_input_ids``: a list of token-id lists (or arrays, or tensors), or of strings; or as
        ``texts``, strings only. One bare string is a batch of one. With ``chat=True`` a prompt is a user's message, or
        a list of messages ({"role", "content"}), and goes through the model's chat template (the one named
        ``chat_template``, if there are several), which also gets ``tools`` and ``chat_template_kwargs``.

        ``sampling_config``, a dictionary or object, gives values to sampling arguments that are not given themselves.
        Other arguments of TensorRT-LLM's function are accepted only with their neutral values.

        ``output_context_logits`` (engines built with --gather_context_logits), ``output_generation_logits``,
        ``output_log_probs`` and ``output_cum_log_probs`` need ``return_dict=True``.

        Returns the results that the class describes; for one bare string its continuation. With ``streaming=True``
        returns an iterator of partial results, one for each step that generated something: arrays and dictionaries hold
        everything so far, strings only what is new. Closing the iterator cancels the rest.

        Raises, before anything runs: LimitError (batch, prompt or output too long), ArgumentError (anything else).
        """
        named = locals()
        extras = Extras(output_context_logits, output_generation_logits, output_log_probs, output_cum_log_probs)
        extras.check(return_dict)
        reject_unsupported("generate", others, calls.GENERATE, _names(self.generate))
        given = with_config(sampling_config, {name: named[name] for name in ARGUMENTS}, _names(self.generate))
        template = Chat.wanted(chat, chat_template, tools, chat_template_kwargs)
        prompts = self._parse_prompts(batch_input_ids, texts, template)
        form = ResultForm(self._pad_id(given.pop("pad_id", None)), prompts, return_dict, extras)
        loras = chosen_loras(lora_uids, self.loras, len(prompts.token_ids))
        requests = make_requests(prompts, given, {"detokenize": prompts.textual, **extras.params()}, loras)
        outputs = [output for handle in self.session.submit_all(requests) for output in outputs_of(handle)]
        if streaming:
            return (form.result(outputs, partial=True) for _ in _run(outputs))
        for _ in _run(outputs):
            pass
        return form.result(outputs, partial=False)

    def get_stats(self) -> Stats:
        """Requests running and waiting, KV cache use and hit rate, preemptions, times: see :class:`Stats`."""
        return self.session.stats()

    def expert_counts(self) -> list[ExpertCounts]:
        """Counts of the experts that each router has chosen so far: see :class:`ExpertCounts`."""
        return self.session.expert_counts()

    def _parse_prompts(self, batch_input_ids: Any, texts: Any, chat: Chat | None) -> Prompts:
        if (batch_input_ids is None) == (texts is None):
            raise ArgumentError("generate needs either batch_input_ids or texts: pass one of them")
        value = batch_input_ids if texts is None else as_texts(texts)
        vocab_size, max_input_len = self.session.manifest.model.vocab_size, self.limits.max_input_len
        prompts = parse_prompts(value, chat, self.tokenizer, vocab_size, max_input_len)
        batch_size, limit = len(prompts.token_ids), self.limits.max_batch_size
        if batch_size > limit:
            raise LimitError(
                f"{batch_size} prompts exceed max_batch_size {limit}: split the batch, or build the engine with "
                f"--max_batch_size {batch_size}"
            )
        return prompts

    def _pad_id(self, pad_id: int | None) -> int:
        """``pad_id``, else the model's padding token, else its first end token, else 0."""
        model = self.session.manifest.model
        if pad_id is not None:
            return whole_number("pad_id", pad_id, -1, 2**31 - 1)
        if model.pad_token_id is not None:
            return model.pad_token_id
        return model.eos_token_ids[0] if model.eos_token_ids else 0


def _run(outputs: list[Output]) -> Iterator[None]:
    """Yield ``steps``; closing the iterator before its end cancels the requests that still run."""
    try:
        yield from steps(outputs)
    finally:
        for output in outputs:
            output.handle.cancel()


def _names(function: Callable[..., Any]) -> list[str]:
    """The names of the arguments of a function that also takes ``**others``."""
    return [name for name in inspect.signature(function).parameters if name not in ("self", "others")]
