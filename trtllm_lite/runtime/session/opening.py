"""Loads an engine: executor and event loop, or stages elsewhere, after checking that there is enough memory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trtllm_lite.common.host_memory import available_host_memory
from trtllm_lite.common.vocabulary import DEFAULT_MAX_LORAS
from trtllm_lite.engine.beside import read_encoder_beside
from trtllm_lite.engine.manifest import Manifest
from trtllm_lite.errors import ArgumentError, shown
from trtllm_lite.runtime.core import core
from trtllm_lite.runtime.lora.adapters import Adapters
from trtllm_lite.runtime.lora.peft import Projections, read_adapter
from trtllm_lite.runtime.lora.request import LoRARequest
from trtllm_lite.runtime.lora.slot_memory import SlotMemory
from trtllm_lite.runtime.session.config import SpeculativeConfig
from trtllm_lite.runtime.session.device import adapter_slots, available_memory, device_options, make_executor, open_gpus
from trtllm_lite.runtime.session.drafting import check_method, drafting_options
from trtllm_lite.runtime.session.embedder import Embedder, open_embedder
from trtllm_lite.runtime.session.engine_dir import check_adapters, check_end_ids, engine_path, open_ranks
from trtllm_lite.runtime.session.event_pump import EventPump
from trtllm_lite.runtime.session.limits import RunnerOptions, check_host_memory, memory_for, runner_limits
from trtllm_lite.runtime.session.prefix_reuse import reuses_prefixes, state_interval, told_reuse
from trtllm_lite.runtime.session.remote import (
    all_manifests,
    check_remote,
    open_last_stage,
    open_stages,
    start_gpu_stages,
)
from trtllm_lite.runtime.session.session import Session
from trtllm_lite.runtime.text.tokenizer import Tokenizer


def check_generates(manifest: Manifest, engine_dir: Path) -> None:
    """Raise ArgumentError if the engine of ``engine_dir`` is an encoder's."""
    if not manifest.module.generates:
        use = manifest.module.use
        raise ArgumentError(
            f"{engine_dir} is the engine of an encoder, which {use.doing} (`LLM.{use.method}`, or {use.route} of "
            "`trtllm-lite serve`) but generates none: build a decoder"
        )


def open_session(engine_dir: str | Path, rank: int, options: RunnerOptions) -> Session:
    """Open a decoder by :func:`open_model`. Raises ArgumentError for an encoder."""
    model = open_model(engine_dir, rank, options, generates=True)
    assert isinstance(model, Session)
    return model


def open_model(
    engine_dir: str | Path, rank: int, options: RunnerOptions, *, generates: bool = False
) -> Session | Embedder:
    """Load the engines of ``engine_dir``: map and check the files, reserve the KV cache, read the tokenizer.

    ``rank`` is 0, because one process runs all ranks. ``generates``: the model has to be a decoder. Raises EngineError
    if the directory holds no engine or a broken one, DeviceError if the engine is for a GPU and there is none that it
    can run on, LimitError if an option exceeds the engine's limits or the engine needs more memory than is free,
    ArgumentError for an invalid option.
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
    check_adapters(manifest)
    if generates:
        check_generates(manifest, directory)
    if not manifest.module.generates:
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


def open_encoder_beside(engine_dir: Path, num_threads: int | None) -> Embedder | None:
    """Load the encoder in the directory ``text_encoder`` of a decoder's engine directory; None if there is none.

    Raises the errors of :func:`open_model`, and EngineError if that is the engine of a decoder.
    """
    found = read_encoder_beside(engine_dir)
    if found is None:
        return None
    model = open_model(found.path.parent, 0, RunnerOptions(num_threads=num_threads))
    assert isinstance(model, Embedder)
    return model


def _open(
    native: Any,
    directory: Path,
    ranks: Sequence[Any],
    manifests: Sequence[Manifest],
    options: RunnerOptions,
    gpu_stages: Any = None,
) -> Session:
    """Make a session of the engines ``ranks``; ``gpu_stages`` runs the other stages, if there are any."""
    engine, manifest = ranks[0], manifests[0]
    draft_engine = _draft_engine(native, options.speculation)
    draft = None if draft_engine is None else Manifest.from_json(draft_engine.manifest)
    num_loras = 0 if manifest.lora is None else options.max_loras or DEFAULT_MAX_LORAS
    others = manifests[1:]
    elsewhere = () if gpu_stages is None else gpu_stages.free_memory()
    gpus = open_gpus(native, manifest.target, len(manifests) - len(elsewhere), options.device_ids)
    available = available_memory(gpus, manifest, draft, num_loras, others, elsewhere)
    slots = adapter_slots(native, manifest, num_loras, options.device_ids)
    limits = runner_limits(manifest, options, available, draft, others, slots)
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
            share = limits.adapter_bytes
            executor = make_executor(native, ranks, manifest, **where, num_loras=num_loras, adapter_bytes=share)
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
            enable_block_reuse=reuses_prefixes(manifest, options),
            enable_chunked_context=options.enable_chunked_context,
            state_interval=state_interval(manifest, options),
            **drafting,
        )
    pump = EventPump(loop)
    return Session(
        manifest=manifest,
        limits=limits,
        executor=executor,
        pump=pump,
        told_reuse=told_reuse(manifest, options),
        tokenizer=tokenizer,
        adapters=_adapters(native, engine, manifest, options, pump, executor),
        stages=stages,
    )


def _draft_engine(native: Any, config: SpeculativeConfig | None) -> Any:
    """The ``_core.Engine`` of the draft model, or None."""
    if config is None or config.model is None:
        return None
    return native.Engine(str(engine_path(Path(config.model), rank=0)))


def _adapters(
    native: Any, engine: Any, manifest: Manifest, options: RunnerOptions, pump: EventPump, executor: Any
) -> Adapters | None:
    """The ``Adapters`` of an engine, None if it takes none; then ArgumentError is raised for options of adapters."""
    if manifest.lora is None:
        if options.max_loras is not None or options.max_cpu_loras is not None:
            raise ArgumentError(
                "max_loras or max_cpu_loras is given, and this engine takes no adapters: build it with "
                "--max_lora_rank, or leave them out"
            )
        return None
    max_rank, shapes = native.adapter_shapes(engine)
    projections = Projections(manifest.lora.projections, shapes, max_rank)

    def load(lora: LoRARequest) -> Any:
        root = None if lora.lora_root is None else Path(lora.lora_root)
        weights = read_adapter(Path(lora.lora_path), projections, root)
        return native.Adapter(engine, weights.pairs, weights.key)

    max_loras = options.max_loras or DEFAULT_MAX_LORAS
    slots = SlotMemory(executor, pump.loop) if manifest.target.kind == "cuda" else None
    adapters = Adapters(load, pump.submit, max_loras, options.max_cpu_loras or 2 * max_loras, slots)
    if slots is not None:
        pump.on_short_of_blocks = adapters.make_room
    return adapters
