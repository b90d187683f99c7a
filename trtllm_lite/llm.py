"""LLM goes from a model, checkpoint or engine to text in one line: it composes convert, build (cached) and runtime."""

import itertools
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from trtllm_lite.common.files import atomic_directory
from trtllm_lite.common.progress import progress_bars
from trtllm_lite.common.units import counted, format_bytes
from trtllm_lite.common.vocabulary import TEXT_CLASSIFIER, TEXT_ENCODER, VISION_TOWER
from trtllm_lite.engine.format import COMPANION_FILES, CONFIG_FILE, ENGINE_FILES
from trtllm_lite.engine.manifest import Manifest
from trtllm_lite.errors import ArgumentError, EngineError, shown
from trtllm_lite.foreign_names import calls
from trtllm_lite.foreign_names.arguments import takes_foreign_names
from trtllm_lite.pages import fact_table
from trtllm_lite.runtime.api.classification import TextPair, classify_texts
from trtllm_lite.runtime.api.configs import config_of, speculation_of
from trtllm_lite.runtime.api.embedding import embed_prompts, model_of
from trtllm_lite.runtime.api.generation import Generation
from trtllm_lite.runtime.core import core
from trtllm_lite.runtime.lora.request import LoRARequest
from trtllm_lite.runtime.session.config import KvCacheConfig, SchedulerConfig, SpeculativeConfig
from trtllm_lite.runtime.session.embedder import Embedder
from trtllm_lite.runtime.session.experts import ExpertCounts
from trtllm_lite.runtime.session.image_prompts import ImagePrompts, PromptImages, open_image_prompts, read_images
from trtllm_lite.runtime.session.limits import RunnerOptions
from trtllm_lite.runtime.session.opening import check_generates, open_encoder_beside
from trtllm_lite.runtime.session.prompts import (
    Chat,
    Prompt,
    is_conversation,
    is_token_ids,
    kept_ids,
    parse_prompts,
)
from trtllm_lite.runtime.session.request import Request
from trtllm_lite.runtime.session.sampling_params import SamplingParams
from trtllm_lite.runtime.session.session import Session
from trtllm_lite.runtime.session.stats import Stats
from trtllm_lite.runtime.text.tokenizer import Tokenizer
from trtllm_lite.runtime.values import check_text, per_request
from trtllm_lite.workflows.wanted_engine import WantedEngine, open_tokenizer

# The most sequences that one call of generate() queues at a time; the event loop bounds the sequences of all callers.
_MAX_QUEUED = 512


@dataclass(frozen=True)
class _Prompt:
    """A prompt that is ready to run."""

    request: Request
    text: str | None
    num_truncated_tokens: int


class LLM:
    """Generates text with one model, or embeds or classifies texts. Threads and coroutines may share it.

    ``model`` is an engine directory, a checkpoint directory, a Hugging Face directory, a GGUF file or a hub id. Unless
    it is an engine, an engine is made from it and kept for later calls in the cache ``$XDG_CACHE_HOME/trtllm_lite``,
    which is limited to ``$TRTLLM_LITE_CACHE_SIZE`` (64 GiB; ``trtllm-lite cache`` lists and clears it).

    - ``tokenizer``: a directory with the files of a tokenizer that replaces the engine's own
    - ``target``: what the engine runs on, "cpu" or GPU architectures ("sm_90", or "sm_80,sm_90" for an engine that runs
      on either); default ("auto"): the target that a given engine was built for, or else this machine's NVIDIA GPUs, or
      its CPU if it has none
    - ``dtype``: storage type of the matrices, "auto" for the model's own, which on GPUs is bfloat16 for models in
      float32 (see ``trtllm-lite convert``)
    - ``dequantize``: expand the blocks of a GGUF file to ``dtype``, which makes larger and, at batch 1, slower
      engines
    - ``qformat``: how the matrices of an unquantized model are quantized, as in `trtllm-lite build`: "int8_wo",
      "int4_wo" (``group_size`` weights share a scale, 128 by default), "fp8", …; schemes that need calibration, and
      8-bit KV caches, are calibrated on a text that comes with the package. A given engine must be quantized in this
      way
    - ``max_batch_size``, ``max_input_len``, ``max_seq_len``, ``max_num_tokens``: limits of the engine that is built, by
      default those of ``trtllm-lite build`` (prompts and answers as long as the model and the GPU's memory allow);
      limits of a given engine may be lowered
    - ``ignore_config_keys``: keys of the model's config.json, and FILE.KEY of other files, that are not supported and
      that you know not to matter; they are left out when the model is converted (see ``trtllm-lite convert``)
    - ``gather_context_logits``: the engine must be able to give prompt_logprobs and context logits
    - ``enable_prompt_embeds``: prompts may be embeddings, {"prompt_embeds": rows}
    - ``deterministic``: the engine must give a request the same bits whatever other requests share its steps
    - ``kv_cache_config``, ``scheduler_config`` (or dictionaries of their fields), ``enable_chunked_prefill`` (prompts
      may be spread over several steps)
    - ``speculative_config`` (a SpeculativeConfig or a dictionary of its fields): proposes draft tokens
    - ``num_threads``: threads that compute on the CPU; all cores by default
    - ``max_lora_rank``: the engine must take adapters of up to this rank (a multiple of 8), at most ``max_loras`` (16)
      in use at once and ``max_cpu_loras`` (twice as many) in memory
    - ``tensor_parallel_size``: devices that split every layer, on a CPU groups of threads; 1 by default, or
      what a given engine was built for
    - ``pipeline_parallel_size``: pipeline stages, each with some of the layers, on ``tensor_parallel_size`` devices;
      the default is chosen in the same way
    - ``moe_expert_parallel_size``: groups of the ``tensor_parallel_size`` devices, each with some of the experts; the
      default is chosen in the same way
    - ``distributed_executor_backend``: "ray" lets each stage compute in an actor of Ray, which may be on another
      machine with the engine at the same path (on GPUs the last stage computes in this process, and NCCL carries what
      stages send each other); by default all compute in this process

    Arguments of TensorRT-LLM and vLLM that have a meaning here are taken by those names, too (``max_model_len``);
    errors and warnings say what becomes of the others.

    Raises ConvertError, BuildError, EngineError (the model), DeviceError (the GPU), LimitError, ArgumentError (the
    arguments).
    """

    @takes_foreign_names("LLM", calls.LLM)
    def __init__(
        self,
        model: str | Path,
        *,
        tokenizer: str | Path | None = None,
        target: str | None = None,
        dtype: str = "auto",
        kv_cache_config: KvCacheConfig | Mapping[str, Any] | None = None,
        scheduler_config: SchedulerConfig | Mapping[str, Any] | None = None,
        speculative_config: SpeculativeConfig | Mapping[str, Any] | None = None,
        enable_chunked_prefill: bool = True,
        max_batch_size: int | None = None,
        max_input_len: int | None = None,
        max_seq_len: int | None = None,
        max_num_tokens: int | None = None,
        ignore_config_keys: Sequence[str] = (),
        dequantize: bool = False,
        qformat: str | None = None,
        group_size: int | None = None,
        gather_context_logits: bool = False,
        enable_prompt_embeds: bool = False,
        deterministic: bool = False,
        num_threads: int | None = None,
        max_lora_rank: int | None = None,
        max_loras: int | None = None,
        max_cpu_loras: int | None = None,
        tensor_parallel_size: int | None = None,
        pipeline_parallel_size: int | None = None,
        moe_expert_parallel_size: int | None = None,
        distributed_executor_backend: str | None = None,
    ) -> None:
        check_text("tokenizer", tokenizer, "a directory with a tokenizer.json", str | Path | None)
        wanted = WantedEngine(
            model=model,
            target=target,
            dtype=dtype,
            ignore_config_keys=ignore_config_keys,
            dequantize=dequantize,
            qformat=qformat,
            group_size=group_size,
            gather_context_logits=gather_context_logits,
            enable_prompt_embeds=enable_prompt_embeds,
            deterministic=deterministic,
            max_lora_rank=max_lora_rank,
            tensor_parallel_size=tensor_parallel_size,
            pipeline_parallel_size=pipeline_parallel_size,
            moe_expert_parallel_size=moe_expert_parallel_size,
        )
        options = RunnerOptions(
            max_batch_size=max_batch_size,
            max_input_len=max_input_len,
            max_seq_len=max_seq_len,
            max_num_tokens=max_num_tokens,
            kv_cache=config_of("kv_cache_config", KvCacheConfig, kv_cache_config),
            scheduler=config_of("scheduler_config", SchedulerConfig, scheduler_config),
            enable_chunked_context=enable_chunked_prefill,
            num_threads=num_threads,
            speculation=speculation_of(speculative_config),
            max_loras=max_loras,
            max_cpu_loras=max_cpu_loras,
            distributed_executor_backend=distributed_executor_backend,
        )
        self.engine_dir, self._model = wanted.open(options)
        self._beside: Embedder | None = None
        self.vision: ImagePrompts | None = None
        if isinstance(self._model, Session):
            try:
                self._beside = open_encoder_beside(self.engine_dir, num_threads)
                self.vision = open_image_prompts(core(), self.engine_dir, options)
            except BaseException:
                self.shutdown()
                raise
        if tokenizer is not None:
            self._model.tokenizer = open_tokenizer(Path(tokenizer))

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer, if the engine has one."""
        return self._model.tokenizer

    def __repr__(self) -> str:
        return f"LLM({str(self.engine_dir)!r})"

    def _repr_html_(self) -> str:
        """The engine, its model and limits as a table, for notebooks."""
        manifest, limits = self._model.manifest, self._model.limits
        model = manifest.model
        facts = {
            "engine": str(self.engine_dir),
            "model": f"{model.architecture}, {counted(model.num_hidden_layers, 'layer')}",
            "linear layers": manifest.qformat,
            "target": ", ".join([manifest.target.kind, *manifest.target.archs]),
            "memory of weights": format_bytes(manifest.memory.weights),
            "max_batch_size": limits.max_batch_size,
            "max_input_len": limits.max_input_len,
            "max_num_tokens": limits.max_num_tokens,
        }
        return fact_table("LLM", facts)

    @property
    def session(self) -> Session:
        """The session that runs requests. Raises ArgumentError if the engine is an encoder's."""
        check_generates(self._model.manifest, self.engine_dir)
        assert isinstance(self._model, Session)
        return self._model

    @property
    def generates(self) -> bool:
        """Whether the engine is a decoder's."""
        return isinstance(self._model, Session)

    @property
    def embeds(self) -> bool:
        """Whether the engine is a text encoder's, or has one in its directory."""
        return self.encoder is not None and self.encoder.manifest.module.kind == TEXT_ENCODER

    @property
    def encoder(self) -> Embedder | None:
        """What embeds or classifies texts: the engine's own encoder, or the one in its directory; None without one."""
        return self._model if isinstance(self._model, Embedder) else self._beside

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        chat: bool = False,
        chat_template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        priority: int | Sequence[int] = 0,
        timeout: float | Sequence[float] | None = None,
        cache_salt: str | Sequence[str] = "",
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        use_tqdm: bool = True,
    ) -> Any:
        """Continue prompts, and wait for all; any number may be given, they are batched in flight.

        A prompt is a string, a list of token ids, a dictionary of either ({"prompt": …}, {"prompt_token_ids": …}), or
        (``chat=True``) a user's message or a list of messages, which goes through the model's chat template (if it has
        several, through the one named ``chat_template``). The template also gets ``tools`` (JSON schemas of functions)
        and the entries of ``chat_template_kwargs``, such as {"enable_thinking": False}. One prompt gives a
        :class:`RequestOutput`, a list of prompts a list of outputs. The other arguments are one value for all prompts
        or a list with one for each: requests of a greater ``priority`` (-100 to 100) are served earlier, ``timeout`` is
        in seconds from submission, only requests of equal ``cache_salt`` share KV cache content, ``lora_request`` is
        the adapter that a request runs with. ``use_tqdm`` shows progress if stderr is a terminal.

        Raises, before anything runs, ArgumentError and LimitError for any of the prompts. A prompt of a list that fails
        while it runs carries its ``error``; a single one raises EngineError.
        """
        template = Chat.wanted(chat, chat_template, tools, chat_template_kwargs)
        queue = self._prompts(prompts, sampling_params, template, priority, timeout, cache_salt, lora_request)
        for row, prompt in enumerate(queue):
            self.session.check(prompt.request, row if len(queue) > 1 else None)
        with progress_bars(use_tqdm) as report:
            generations = self._run(queue, partial(report, "generating"))
        if _is_single(prompts, chat):
            return generations[0].result()
        return [generation.outcome() for generation in generations]

    def chat(
        self,
        messages: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        **options: Any,
    ) -> Any:
        """:meth:`generate` with ``chat=True``, by the name that vLLM has for it; ``options`` are further arguments."""
        return self.generate(messages, sampling_params, chat=True, **options)

    def generate_async(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        chat: bool = False,
        chat_template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        streaming: bool = False,
        priority: int = 0,
        timeout: float | None = None,
        cache_salt: str = "",
        lora_request: LoRARequest | None = None,
    ) -> Generation:
        """Start the continuation of one prompt; returns at once, or when a new grammar of ``sampling_params`` is
        compiled.

        The :class:`Generation` can be iterated over (``streaming=True``: after every step), awaited, waited for with
        ``result()``, and cancelled. Arguments and errors are those of :meth:`generate`; it also raises OverloadedError
        if too many requests are outstanding: the request may be sent again later.
        """
        if not _is_single(prompt, chat):
            raise ArgumentError("generate_async takes one prompt: a string, a list of token ids or (chat) of messages")
        template = Chat.wanted(chat, chat_template, tools, chat_template_kwargs)
        (only,) = self._prompts(prompt, sampling_params, template, priority, timeout, cache_salt, lora_request)
        return self._start(only, streaming=streaming)

    def embed(self, prompts: Prompt | Sequence[Prompt], *, priority: int = 0, timeout: float | None = None) -> Any:
        """Embeddings of texts by an encoder: an :class:`EmbeddingOutput` for one, a list for several.

        The engine is an encoder's, or the directory of a decoder's engine has that of an encoder as ``text_encoder``.

        Prompts have the forms that :meth:`generate` takes. Any number may be given, from any thread: they are batched
        in flight, in turns with the texts of other calls. Texts of a greater ``priority`` (-100 to 100) are served
        earlier; ``timeout`` is in seconds from a text's submission. Raises ArgumentError and LimitError (no text is
        cut), before anything runs; LimitError also when the timeout has passed, OverloadedError if too many texts of
        other calls are outstanding, EngineError if a text fails.
        """
        embedder = model_of(TEXT_ENCODER, self._beside or self._model)
        return embed_prompts(embedder, prompts, priority=priority, timeout=timeout)

    def classify(
        self,
        texts: Prompt | TextPair | Sequence[Prompt | TextPair],
        *,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Any:
        """Labels of texts, or of pairs of texts, by a classifier: a :class:`ClassificationOutput` for one, a list for
        several.

        A text is a string or a list of token ids, and a pair, such as a question and a passage for a reranker, a tuple
        of two strings or {"text": first, "text_pair": second}. Batching, arguments and errors are those of
        :meth:`embed`.
        """
        classifier = model_of(TEXT_CLASSIFIER, self._model)
        return classify_texts(classifier, texts, priority=priority, timeout=timeout)

    def encode(self, *_: Any, **__: Any) -> NoReturn:
        """Raise ArgumentError, which names :meth:`embed` to those who know vLLM's ``encode``."""
        raise ArgumentError("LLM.encode: use LLM.embed for embeddings, or get_tokenizer().encode for token ids")

    def get_tokenizer(self) -> Tokenizer | None:
        """The :attr:`tokenizer`, by the name that vLLM has for it."""
        return self.tokenizer

    def get_stats(self) -> Stats:
        """Requests running and waiting, KV cache use and hit rate, preemptions, times: see :class:`Stats`."""
        return self._model.stats()

    def expert_counts(self) -> list[ExpertCounts]:
        """Counts of the experts that each router has chosen so far: see :class:`ExpertCounts`."""
        return self.session.expert_counts()

    def save(self, engine_dir: str | Path) -> None:
        """Copy the engine to ``engine_dir``, which appears whole or not at all, in place of an older engine.

        Processes that run the older one go on with it. Raises OutputError; EngineError if the engine's files are gone.
        """
        check_text("engine_dir", engine_dir, "a directory", str | Path)
        _copy_engine(self._model.manifest, self.engine_dir, Path(engine_dir))
        if self.vision is not None:
            tower = self.vision.encoder.manifest
            _copy_engine(tower, self.engine_dir / VISION_TOWER, Path(engine_dir) / VISION_TOWER)
        if self._beside is not None:
            _copy_engine(self._beside.manifest, self.engine_dir / TEXT_ENCODER, Path(engine_dir) / TEXT_ENCODER)

    def shutdown(self) -> None:
        """Cancel what runs and end the engine's threads; nothing can be generated any more."""
        self._model.close()
        if self._beside is not None:
            self._beside.close()
        if self.vision is not None:
            self.vision.encoder.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.shutdown()

    def _prompts(
        self, prompts: Any, params: Any, chat: Chat | None, priority: Any, timeout: Any, cache_salt: Any, lora: Any
    ) -> list[_Prompt]:
        """The requests for prompts in any form, not yet checked against the engine's limits."""
        batch = [prompts] if is_token_ids(prompts) else prompts
        vocab_size, max_input_len = self.session.manifest.model.vocab_size, self.session.limits.max_input_len
        batch, images = self._images(batch, chat)
        parsed = parse_prompts(batch, chat, self.tokenizer, vocab_size, max_input_len, edit=images.expand)
        columns = {
            "sampling_params": SamplingParams() if params is None else params,
            "priority": priority,
            "timeout": timeout,
            "cache_salt": cache_salt,
            "lora_request": lora,
        }
        spread = {name: per_request(name, value, len(parsed.token_ids)) for name, value in columns.items()}
        result = []
        for row, ids in enumerate(parsed.token_ids):
            own = {name: values[row] for name, values in spread.items()}
            own_params = own.pop("sampling_params")
            if not isinstance(own_params, SamplingParams):
                raise ArgumentError(
                    f"sampling_params is {shown(own_params)}: expected SamplingParams, or a list of them"
                )
            whole, rows = images.place(row, ids, own["cache_salt"])
            kept, embeds = kept_ids(whole, own_params.truncate_prompt_tokens), rows or parsed.embeds[row]
            if embeds is not None and len(kept) < len(whole):
                raise ArgumentError(
                    "truncate_prompt_tokens is given for a prompt with prompt_embeds or images: leave it out"
                )
            text = parsed.texts[row] if parsed.texts else None
            request = Request(kept, own_params, prompt_embeds=embeds, **own)
            result.append(_Prompt(request, text, len(whole) - len(kept)))
        return result

    def _images(self, prompts: Any, chat: Chat | None) -> tuple[Any, PromptImages]:
        """Prompts without their images, and the images, which are read already."""
        return read_images(prompts, chat is not None, self.vision)

    def _run(self, prompts: Sequence[_Prompt], report: Callable[[int, int], None]) -> list[Generation]:
        """Run all requests to their ends: a bounded number at a time, requests of greater priority first."""
        order = sorted(range(len(prompts)), key=lambda row: -prompts[row].request.priority)
        window = max(_MAX_QUEUED // max(prompt.request.params.num_sequences for prompt in prompts), 1)
        started: dict[int, Generation] = {}
        done = itertools.count(1)

        def finish(row: int) -> None:
            started[row].wait()
            report(next(done), len(prompts))

        try:
            with self.session.together():
                for row in order[:window]:
                    started[row] = self._start(prompts[row], streaming=False)
            for before, row in zip(order, order[window:], strict=False):
                finish(before)
                started[row] = self._start(prompts[row], streaming=False)
            for row in order[-window:]:
                finish(row)
        except BaseException:
            for generation in started.values():
                generation.cancel()
            raise
        return [started[row] for row in range(len(prompts))]

    def _start(self, prompt: _Prompt, *, streaming: bool) -> Generation:
        return Generation(
            self.session,
            prompt.request,
            prompt=prompt.text,
            num_truncated_tokens=prompt.num_truncated_tokens,
            streaming=streaming,
        )


def _copy_engine(manifest: Manifest, source: Path, target: Path) -> None:
    """Copy engine files, manifest and tokenizer, and no other files that the manifest may name."""
    files = (*manifest.engine_files, CONFIG_FILE, *(name for name in COMPANION_FILES if name in manifest.files))
    with atomic_directory(target, CONFIG_FILE, optional=ENGINE_FILES) as directory:
        for name in files:
            try:
                shutil.copyfile(source / name, directory / name)
            except FileNotFoundError as error:
                raise EngineError(f"{source} was removed: load the model again") from error


def _is_single(prompts: Any, chat: bool) -> bool:
    return isinstance(prompts, str | Mapping) or is_token_ids(prompts) or (chat and is_conversation(prompts))
