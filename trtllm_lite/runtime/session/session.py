"""An engine that is loaded and ready to generate: executor, event loop, limits, tokenizer."""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from trtllm_lite.engine.format import ENGINE_FILE, engine_file
from trtllm_lite.engine.manifest import Manifest
from trtllm_lite.errors import ArgumentError, EngineError, LimitError, shown
from trtllm_lite.host_memory import available_host_memory
from trtllm_lite.printable import one_line
from trtllm_lite.runtime.core import core
from trtllm_lite.runtime.lora.adapters import Adapters
from trtllm_lite.runtime.lora.peft import Projections, read_adapter
from trtllm_lite.runtime.lora.request import LoRARequest
from trtllm_lite.runtime.session.config import SpeculativeConfig
from trtllm_lite.runtime.session.device import available_memory, device_options, make_executor
from trtllm_lite.runtime.session.drafting import check_method, drafting_options
from trtllm_lite.runtime.session.embedder import Embedder, open_embedder
from trtllm_lite.runtime.session.event_pump import EventPump
from trtllm_lite.runtime.session.experts import ExpertCounts, expert_counts
from trtllm_lite.runtime.session.grammars import Grammars
from trtllm_lite.runtime.session.limits import (
    RunnerLimits,
    RunnerOptions,
    check_host_memory,
    memory_for,
    runner_limits,
)
from trtllm_lite.runtime.session.notifier import Notifier
from trtllm_lite.runtime.session.prompt_len import check_prompt_len, output_len
from trtllm_lite.runtime.session.remote import (
    all_manifests,
    check_remote,
    open_last_stage,
    open_stages,
    start_gpu_stages,
)
from trtllm_lite.runtime.session.request import Request
from trtllm_lite.runtime.session.request_handle import RequestHandle
from trtllm_lite.runtime.session.stats import Stats, make_stats
from trtllm_lite.runtime.text.tokenizer import Tokenizer
from trtllm_lite.vocabulary import DEFAULT_MAX_LORAS

NO_GENERATION = "is an encoder's engine, which embeds texts (`LLM.embed`) and generates none: build a decoder's"


@dataclass(eq=False)
class Session:
    """Takes requests, from any thread, and runs them together.

    ``executor`` is a ``_core.DeviceExecutor``; ``pump`` delivers the events of the
    ``_core.EventLoop`` over it; tests put stand-ins in their place. ``stages`` are the processes that compute, if it is
    not this one. A session lives as long as something refers to it
    or to the handle of one of its requests.
    """

    manifest: Manifest
    limits: RunnerLimits
    executor: Any
    pump: EventPump
    tokenizer: Tokenizer | None
    adapters: Adapters | None = None
    stages: Any = None

    def __post_init__(self) -> None:
        # This also runs at the interpreter's exit: the pump's thread must end before the objects that it uses.
        self._close = weakref.finalize(self, _close, self.adapters, self.pump, self.stages)

    def check(self, request: Request, row: int | None = None) -> None:
        """Raise what :meth:`submit` would raise but for a full queue; ``row`` is the prompt's number among several."""
        self._native_params(request, row)
        self._grammar(request)
        self._new_text(request)
        self._adapters_of(request)

    def submit(self, request: Request, notifier: Notifier | None = None) -> RequestHandle:
        """Queue a request; returns at once. Requests that are waited for together take the same ``notifier``.

        A grammar that is not kept from earlier requests is compiled first, which takes milliseconds, of very large ones
        seconds. Raises LimitError (prompt or output too long), ArgumentError (parameters that do not fit the model),
        OverloadedError (too many requests outstanding: try again later), EngineError (the session is broken).
        """
        return self.submit_all([request], notifier)[0]

    def submit_all(self, requests: Sequence[Request], notifier: Notifier | None = None) -> list[RequestHandle]:
        """:meth:`submit` several requests; if one raises, none of them runs."""
        natives = [
            self._native_params(request, row if len(requests) > 1 else None) for row, request in enumerate(requests)
        ]
        grammars = [self._grammar(request) for request in requests]
        new_texts = [self._new_text(request) for request in requests]
        shared = notifier or Notifier()
        handles = [
            RequestHandle(request, native, grammar, new_text, shared, self.cancel)
            for request, native, grammar, new_text in zip(requests, natives, grammars, new_texts, strict=True)
        ]
        try:
            for handle in handles:
                self._start(handle)
        except BaseException:
            for handle in handles:
                handle.cancel()
            raise
        return handles

    def _start(self, handle: RequestHandle) -> None:
        adapters, lora = self._adapters_of(handle.request), handle.request.lora_request
        if adapters is None or lora is None:
            self.pump.submit(handle)
            return
        handle.may_wait(adapters.withdraw)
        adapters.submit(handle, lora)

    def _adapters_of(self, request: Request) -> Adapters | None:
        """The adapters of which a request wants one; None if it wants none."""
        return None if request.lora_request is None else self.check_takes_adapters("lora_request")

    def check_takes_adapters(self, given: str) -> Adapters:
        """Who keeps the engine's adapters. Raises ArgumentError, about the argument ``given``, if it takes none."""
        if self.adapters is None:
            raise ArgumentError(
                f"{given} is given, and this engine takes no adapters: build it with --max_lora_rank, or give LLM "
                "max_lora_rank"
            )
        return self.adapters

    def cancel(self, request_id: int) -> None:
        """End a request within a step; a request that has ended already stays as it is."""
        self.pump.loop.cancel(request_id)

    @property
    def is_broken(self) -> bool:
        """Whether nothing can be generated any more until the engine is loaded again."""
        return self.pump.failure is not None or (self.stages is not None and self.stages.failure is not None)

    def stats(self) -> Stats:
        """Counts and times of what the session has done so far."""
        loaded = () if self.adapters is None else self.adapters.loaded()
        return make_stats(self.pump.loop.stats(), self.pump.latencies, loaded)

    def expert_counts(self) -> list[ExpertCounts]:
        """What the router of each layer with experts has chosen so far, of those that this process computes.

        Steps go on meanwhile, so that some layers may have counted a step that others have not.
        """
        return expert_counts(self.executor)

    def close(self) -> None:
        """Cancel what runs, and end the session's thread. Nothing can be submitted any more; closing twice is fine."""
        self._close()

    @cached_property
    def _grammars(self) -> Grammars:
        return Grammars(self.manifest, self.tokenizer)

    def _grammar(self, request: Request) -> Any:
        """``_core.Grammar`` of a request, or None; compiled if it is not kept from an earlier request."""
        guided = request.params.guided_decoding
        return None if guided is None else self._grammars.of(guided, request.prompt_ids)

    def _native_params(self, request: Request, row: int | None = None) -> Any:
        """``_core.sampling.SamplingParams`` of request number ``row``, checked against the limits."""
        params, prompt_len = request.params, len(request.prompt_ids)
        name = "the prompt" if row is None else f"prompt {row}"
        check_prompt_len(name, prompt_len, self.limits)
        max_tokens = output_len(name, prompt_len, params.max_tokens, self.limits)
        wants_prompt = params.return_context_logits or params.prompt_logprobs is not None
        if wants_prompt and not self.manifest.gather_context_logits:
            wanted = "context logits" if params.return_context_logits else "prompt_logprobs"
            raise ArgumentError(
                f"this engine computes the logits of the last prompt token only: for {wanted}, build it with "
                "--gather_context_logits"
            )
        if params.use_beam_search and params.num_sequences > self.limits.max_beam_width:
            raise LimitError(
                f"a search with {params.num_sequences} beams exceeds max_beam_width {self.limits.max_beam_width}: ask "
                "for fewer beams, or build the engine with a larger --max_batch_size"
            )
        if params.stop_words.texts and self.tokenizer is None:
            raise ArgumentError("this engine has no tokenizer: give stop words as token ids")
        return params.to_native(self.manifest, self.tokenizer, max_tokens)

    def _new_text(self, request: Request) -> Callable[[], Any]:
        """What makes a ``_core.TextStream`` for a request. Raises EngineError if the tokenizer can write no text."""
        params, tokenizer = request.params, self.tokenizer
        has_text = tokenizer is not None and (params.detokenize or params.stop_words.texts)
        return partial(
            core().TextStream,
            tokenizer.token_bytes if tokenizer is not None and has_text else None,
            np.ascontiguousarray(request.prompt_ids, np.int32),
            params.stop_words.matcher,
            skips_special=params.skip_special_tokens,
            returns_text=params.detokenize,
            min_tokens=params.min_tokens,
            includes_stop=params.include_stop_str_in_output,
        )


def open_session(engine_dir: str | Path, rank: int, options: RunnerOptions) -> Session:
    """:func:`open_model` of a decoder. Raises ArgumentError for an encoder."""
    model = open_model(engine_dir, rank, options, generates=True)
    assert isinstance(model, Session)
    return model


def open_model(
    engine_dir: str | Path, rank: int, options: RunnerOptions, *, generates: bool = False
) -> Session | Embedder:
    """Load the engines of ``engine_dir``: map and check the files, reserve the KV cache, read the tokenizer.

    ``rank`` is 0: whoever loads an engine runs all its ranks. ``generates``: the model must be a decoder. Raises
    EngineError if the directory holds no engine or a broken one, DeviceError if the engine is for a GPU and there is
    none that it can run on, LimitError if an option exceeds the engine's limits or the engine needs more memory than
    there is, ArgumentError if an option makes no sense.
    """
    directory = Path(engine_dir)
    if isinstance(rank, bool) or not isinstance(rank, int) or rank != 0:
        raise ArgumentError(f"rank is {shown(rank)}: one process runs all ranks of an engine, so pass rank=0")
    native = core()
    is_remote = options.distributed_executor_backend is not None
    ranks = [native.Engine(str(engine_path(directory, 0)))] if is_remote else open_ranks(native, directory)
    manifests = [Manifest.from_json(rank.manifest) for rank in ranks]
    manifest = manifests[0]
    check_end_ids(manifest)
    if manifest.embedding_size and generates:
        raise ArgumentError(f"{directory} {NO_GENERATION}")
    if manifest.embedding_size:
        return open_embedder(native, directory, ranks, options)
    if is_remote:
        check_remote(manifest, options)
        manifests = all_manifests(directory, manifest)
    options = device_options(manifest.target, options)
    if not is_remote or manifest.target.kind == "cpu":
        return _open(native, directory, ranks, manifests, options)
    gpu_stages = start_gpu_stages(directory, manifest)
    try:
        return _open(native, directory, ranks, manifests, options, gpu_stages)
    except BaseException:
        gpu_stages.close()
        raise


def _open(
    native: Any,
    directory: Path,
    ranks: Sequence[Any],
    manifests: Sequence[Manifest],
    options: RunnerOptions,
    gpu_stages: Any = None,
) -> Session:
    """A session of the engines ``ranks``, of which ``gpu_stages`` has others than the last stage's."""
    engine, manifest = ranks[0], manifests[0]
    draft_engine = _draft_engine(native, options.speculation)
    draft = None if draft_engine is None else Manifest.from_json(draft_engine.manifest)
    num_loras = 0 if manifest.lora is None else options.max_loras or DEFAULT_MAX_LORAS
    others = manifests[1:]
    elsewhere = () if gpu_stages is None else gpu_stages.free_memory()
    available = available_memory(native, manifest, draft, num_loras, options.device_ids, others, elsewhere)
    limits = runner_limits(manifest, options, available, draft, others)
    tokenizer = Tokenizer.from_dir(directory, manifest.files, native.crc32c)
    check_host_memory(limits, available_host_memory())
    max_seq_len = min(limits.max_seq_len, limits.cache_len)
    if draft is not None and options.speculation is not None:
        check_method(options.speculation, draft)
        native.check_draft_model(engine, draft_engine, max_seq_len=max_seq_len, max_batch_size=limits.max_batch_size)
    with memory_for(limits):
        where: dict[str, Any] = {
            "num_threads": options.num_threads or 0,
            "num_blocks": limits.num_blocks,
            "device_ids": options.device_ids,
        }
        stages = gpu_stages
        if gpu_stages is not None:
            executor = open_last_stage(native, directory, manifest, gpu_stages, limits, options.device_ids)
        elif options.distributed_executor_backend is not None:
            stages = open_stages(directory, manifest, limits.num_blocks, options.num_threads)
            executor = native.RemoteStages(engine, stages)
        else:
            executor = make_executor(native, ranks, manifest, **where, num_loras=num_loras)
        drafting = drafting_options(native, options.speculation, manifest.limits)
        if draft is not None:
            where["device_ids"] = options.device_ids and options.device_ids[:1]
            drafting["draft_model"] = make_executor(native, [draft_engine], draft, **where, features_of=executor)
        loop = native.EventLoop(
            executor,
            max_batch_size=limits.max_batch_size,
            max_input_len=limits.max_input_len,
            max_seq_len=max_seq_len,
            max_num_tokens=limits.max_num_tokens,
            num_host_blocks=limits.num_host_blocks,
            max_utilization=options.scheduler.capacity_scheduler_policy == "MAX_UTILIZATION",
            enable_block_reuse=options.kv_cache.enable_block_reuse,
            enable_chunked_context=options.enable_chunked_context,
            **drafting,
        )
    pump = EventPump(loop)
    return Session(
        manifest=manifest,
        limits=limits,
        executor=executor,
        pump=pump,
        tokenizer=tokenizer,
        adapters=_adapters(native, engine, manifest, options, pump, executor),
        stages=stages,
    )


def open_ranks(native: Any, directory: Path) -> list[Any]:
    """``_core.Engine`` of each rank."""
    first = native.Engine(str(engine_path(directory, 0)))
    others = range(1, Manifest.from_json(first.manifest).mapping.num_ranks)
    return [first, *(native.Engine(str(engine_path(directory, rank))) for rank in others)]


def _adapters(
    native: Any, engine: Any, manifest: Manifest, options: RunnerOptions, pump: EventPump, executor: Any
) -> Adapters | None:
    """Who keeps the adapters of an engine that takes some. Raises ArgumentError for options that it does not read."""
    if manifest.lora is None:
        if options.max_loras is not None or options.max_cpu_loras is not None:
            raise ArgumentError(
                "max_loras or max_cpu_loras is given, and this engine takes no adapters: build it with "
                "--max_lora_rank, or leave them out"
            )
        return None
    max_rank, shapes = native.adapter_shapes(engine)
    projections = Projections(manifest.lora.projections, shapes, max_rank)
    if len(shapes) != len(manifest.lora.projections):
        raise EngineError("the engine's manifest and plan differ in the projections of adapters: build it again")

    def load(lora: LoRARequest) -> Any:
        weights = read_adapter(Path(lora.lora_path), projections)
        return native.Adapter(engine, weights.pairs, weights.key)

    def place(adapter: Any, slot: int) -> None:
        executor.place_adapter(adapter, slot=slot)

    max_loras = options.max_loras or DEFAULT_MAX_LORAS
    has_slots = manifest.target.kind == "cuda"
    return Adapters(load, pump.submit, max_loras, options.max_cpu_loras or 2 * max_loras, place if has_slots else None)


def _close(adapters: Adapters | None, pump: EventPump, stages: Any) -> None:
    if adapters is not None:
        adapters.close()
    pump.close()
    if stages is not None:
        stages.close()


def _draft_engine(native: Any, config: SpeculativeConfig | None) -> Any:
    """``_core.Engine`` of the model that drafts, or None."""
    if config is None or config.model is None:
        return None
    return native.Engine(str(engine_path(Path(config.model), rank=0)))


def check_end_ids(manifest: Manifest) -> None:
    """Raise EngineError if an end-of-sequence token of the model is not in its vocabulary."""
    model = manifest.model
    outside = [token for token in model.eos_token_ids if not 0 <= token < model.vocab_size]
    if outside:
        raise EngineError(
            f"the engine's end-of-sequence token {shown(outside[0])} is none of its {model.vocab_size} tokens: correct "
            "eos_token_id in the model's config.json, then convert and build again"
        )


def engine_path(directory: Path, rank: int) -> Path:
    """The engine file of ``rank``, or an EngineError that says what the directory is instead."""
    path = directory / engine_file(rank)
    if path.is_file():
        return path
    if not directory.exists():
        raise EngineError(f"engine directory {directory} does not exist: make it with `trtllm-lite build`")
    if not directory.is_dir():
        raise EngineError(f"{directory} is a file, expected a directory that holds {path.name}: pass its directory")
    if (directory / "network.onnx").is_file():
        raise EngineError(
            f"{directory} is a checkpoint, expected an engine: build it first with "
            f"`trtllm-lite build --checkpoint_dir {directory} --output_dir ENGINE`"
        )
    if rank and (directory / ENGINE_FILE).is_file():
        raise EngineError(f"{directory} has {ENGINE_FILE}, but no {path.name}: copy the whole directory, or build it")
    found = one_line(", ".join(sorted(entry.name for entry in directory.iterdir())[:8])) or "nothing"
    raise EngineError(
        f"{directory} holds no {path.name} (found: {found}): make an engine with `trtllm-lite convert`, then "
        "`trtllm-lite build`"
    )
