"""The command ``build``: checkpoint directory in, engine directory out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Unpack

from trtllm_lite import _core
from trtllm_lite.builder.backends import NATIVE, Backend, backend_of
from trtllm_lite.builder.cache_dtype import AUTO_DTYPE, check_key_cache
from trtllm_lite.builder.checkpoint import Checkpoint, open_checkpoint
from trtllm_lite.builder.fitting import fit_limits
from trtllm_lite.builder.job import BuildJob, Progress, Tuning
from trtllm_lite.builder.limits import BuildLimits, GivenLimits
from trtllm_lite.builder.lora import check_lora, check_lora_of_quantized
from trtllm_lite.builder.memory import MemoryPlan
from trtllm_lite.builder.module_options import check_module
from trtllm_lite.builder.observe import observe
from trtllm_lite.builder.parts import EngineParts, content_of, manifest_of
from trtllm_lite.builder.passes.features import has_features
from trtllm_lite.builder.prompt_embeds import check_prompt_embeds
from trtllm_lite.builder.ranks import check_divisible, check_experts, check_strategy, link_bytes, ranks_of
from trtllm_lite.builder.recurrent import check_recurrent
from trtllm_lite.builder.state_dtype import round_states, with_states
from trtllm_lite.builder.state_forms import compare_forms
from trtllm_lite.common.files import atomic_directory, require_space
from trtllm_lite.common.foreign_files import read_foreign
from trtllm_lite.common.vocabulary import CPU, FLOAT32, KV_CACHE_DTYPES, MAX_TP_SIZE, PLAIN_DTYPES, VISION_TOWER
from trtllm_lite.engine.format import COMPANION_FILES, CONFIG_FILE, ENGINE_FILES, engine_file, max_file_bytes
from trtllm_lite.engine.manifest import Accuracy, Manifest
from trtllm_lite.engine.provenance import PROVENANCE_FILE
from trtllm_lite.engine.sbom import SBOM_FILE
from trtllm_lite.engine.signature import SIGNATURE_FILE
from trtllm_lite.engine.writer import EngineContent, Weight, write_engines
from trtllm_lite.errors import BuildError, EngineError
from trtllm_lite.quantize.calibration.statistics import Statistics, placeholder
from trtllm_lite.quantize.kv_cache import with_plain_kv_cache
from trtllm_lite.quantize.network import GROUP_SIZE, Recipe, no_calibration, quantize_network, quantized_as
from trtllm_lite.quantize.schemes import FULL_PRECISION
from trtllm_lite.quantize.threads import in_order, workers_of


def build_engine(
    checkpoint_dir: Path | Checkpoint,
    output_dir: Path,
    *,
    qformat: str = FULL_PRECISION,
    group_size: int = GROUP_SIZE,
    kv_cache_dtype: str = AUTO_DTYPE,
    kv_cache_scale: float | None = None,
    key_cache_dtype: str = AUTO_DTYPE,
    state_dtype: str = FLOAT32,
    target: str | Sequence[str] = CPU,
    backend: str = NATIVE,
    strip_plan: bool = False,
    input_timing_cache: Path | None = None,
    output_timing_cache: Path | None = None,
    fast_build: bool = False,
    observed: Mapping[str, Sequence[str]] | None = None,
    accuracy: Accuracy | None = None,
    attest: Callable[[Path], None] | None = None,
    progress: Progress | None = None,
    device_memory: int | None = None,
    **limits: Unpack[GivenLimits],
) -> Manifest:
    """Compile the checkpoint into ``output_dir``, which appears whole or not at all; returns the engine's manifest.

    ``limits`` are :class:`GivenLimits`, as :meth:`BuildLimits.for_model` takes them; limits that are not given are
    chosen so that the engine fits into GPUs of ``device_memory`` bytes (:mod:`trtllm_lite.builder.fitting`). ``target``
    is ``cpu``, or one or several GPU architectures (``sm_90``); ``backend`` chooses the kernels: ``native`` (this
    project's) or ``tensorrt`` (:mod:`trtllm_lite.builder.tensorrt`). ``qformat`` says how the weights of linear layers
    are stored: as in the checkpoint (``full_prec``), or quantized by a scheme that needs no calibration
    (:mod:`trtllm_lite.quantize.schemes`), 4-bit weights in blocks of ``group_size``. ``kv_cache_dtype`` is the type of
    the KV cache: ``auto`` is what the network rounds keys and values to (the command ``quantize`` calibrates that), or
    else float32 on CPUs and the type of activations on GPUs; on CPUs it may be float16 or bfloat16. A plain type stores
    keys and values unrounded, even if the network rounds them. With ``fp8`` and ``int8`` this build makes the network
    round them, by one ``kv_cache_scale`` for all layers. ``key_cache_dtype`` is the type of keys alone beside values in
    8 bits: ``auto`` is what the network says, a plain type stores keys unrounded. ``state_dtype`` is the type in which
    recurrent layers store matrices; ``auto`` is the cheapest that changes results little enough
    (:mod:`trtllm_lite.builder.state_dtype`). The forms of recurrent layers are compared
    (:mod:`trtllm_lite.builder.state_forms`). The same checkpoint and limits give the same bytes on every machine.
    Memory peaks at a few times the largest weight.

    ``input_timing_cache`` is a file of measurements on a GPU, by which algorithms of matrix products are chosen. With
    ``output_timing_cache`` this machine's GPU is measured, and the measurements are used and written there, together
    with those of the input cache, which must be of the same kind of GPU and version of cuBLAS. ``fast_build`` measures
    fewer sizes and candidates, each too briefly for a GPU to reach its power limit. With ``strip_plan`` the engine has
    no weights, for benchmarks: the runtime makes random ones on the GPU. ``observed`` makes the inputs of matrix
    products outputs of each step (:func:`trtllm_lite.builder.observe.observe`), for calibration. ``accuracy`` holds the
    measured accuracy of this network, which the manifest records. ``attest`` is called with the finished engine's
    directory before that becomes ``output_dir``, and writes SBOM_FILE and PROVENANCE_FILE there.

    Raises BuildError (limits, target, or a network that does not fuse), EngineError (the checkpoint), OutputError.
    """
    report = progress or _ignore
    chosen, targets = backend_of([target] if isinstance(target, str) else target, backend)
    tuning = Tuning(_path(input_timing_cache), _path(output_timing_cache), fast_build)
    chosen.check(targets, strip_plan, tuning)
    report("fuse", 0, 1)
    checkpoint = checkpoint_dir if isinstance(checkpoint_dir, Checkpoint) else open_checkpoint(checkpoint_dir)
    tower = checkpoint.tower()
    if tower is not None:
        limits["enable_prompt_embeds"] = True  # the tower's rows take the place of tokens
    stored: dict[str, Any] = {"qformat": qformat, "group_size": group_size, "kv_cache_scale": kv_cache_scale}
    caches = {"kv_cache_dtype": kv_cache_dtype, "key_cache_dtype": key_cache_dtype, "state_dtype": state_dtype}
    bounds = choose_limits(checkpoint, device_memory, target=targets, backend=backend, **stored, **caches, **limits)
    if checkpoint.path is None and not strip_plan:
        raise BuildError("a model config has no weights to build with: pass a checkpoint, or strip_plan for benchmarks")
    statistics = placeholder if strip_plan else no_calibration
    recipe = _recipe(qformat, group_size, kv_cache_dtype, kv_cache_scale, key_cache_dtype)
    job = _fuse(checkpoint, bounds, recipe, caches, chosen, targets, strip_plan, tuning, report, statistics)
    job = replace(job, accuracy=accuracy, state_forms=() if strip_plan else compare_forms(job.graph))
    observe(job.graph, observed or {}, {str(node.name) for node in checkpoint.model.graph})
    stages = ranks_of(job)
    report("fuse", 1, 1)

    def add_tower(directory: Path) -> None:
        if tower is not None:
            how: dict[str, Any] = {"target": target, "backend": backend, "strip_plan": strip_plan, "progress": progress}
            build_engine(tower, directory / VISION_TOWER, **how)

    jobs = [rank for stage in stages for rank in stage]
    ranks = _ahead([parts for stage in stages for parts in chosen.compile(stage)], workers_of(job.graph))
    return _serialize(jobs, ranks, Path(output_dir), add_tower, attest)


def _serialize(
    jobs: Sequence[BuildJob],
    ranks: Sequence[EngineParts],
    output_dir: Path,
    add_tower: Callable[[Path], None],
    attest: Callable[[Path], None] | None,
) -> Manifest:
    """Write the engine's directory, whole or not at all; returns the manifest of its first rank."""
    optional = (*ENGINE_FILES, *COMPANION_FILES, PROVENANCE_FILE, SBOM_FILE, SIGNATURE_FILE)
    with atomic_directory(output_dir, CONFIG_FILE, optional=optional, parts=(VISION_TOWER,)) as directory:
        files = _copy_companions(jobs[0].checkpoint, directory)
        manifests = [manifest_of(job, parts, files) for job, parts in zip(jobs, ranks, strict=True)]
        _write(directory, list(map(content_of, ranks, manifests)), partial(jobs[0].report, "write"))
        (directory / CONFIG_FILE).write_text(manifests[0].to_json(indent=2) + "\n")
        add_tower(directory)
        if attest is not None:
            attest(directory)
    return manifests[0]


def _ahead(ranks: Sequence[EngineParts], workers: int) -> list[EngineParts]:
    """Let ``workers`` threads compute the weights of ``ranks`` before they are written, in the order of writing."""
    in_turns = (weight for turn in zip_longest(*(parts.weights for parts in ranks)) for weight in turn if weight)
    computed = in_order([weight.load for weight in in_turns if weight.computed], workers)

    def ahead(weight: Weight) -> Weight:
        return replace(weight, load=lambda: next(computed)) if weight.computed else weight

    return [replace(parts, weights=tuple(map(ahead, parts.weights))) for parts in ranks]


def _write(directory: Path, ranks: Sequence[EngineContent], progress: Callable[[int, int], None]) -> None:
    """Write the engines. Raises OutputError if there is no room, BuildError if the runtime refuses an engine."""
    weights = sum(weight.num_bytes for engine in ranks for weight in engine.weights)
    require_space(directory, weights + sum(len(image) for engine in ranks for image in engine.networks.values()))
    engines = {directory / engine_file(rank): engine for rank, engine in enumerate(ranks)}
    write_engines(engines, progress)
    for path in engines:
        _read_back(path)


def _read_back(engine: Path) -> None:
    """Raise BuildError if the runtime refuses what was written, so that a build that ends well can be loaded."""
    try:
        _core.Engine(str(engine))
    except EngineError as error:
        raise BuildError(
            f"the runtime refuses the engine ({error}); this is a defect of trtllm_lite: report it"
        ) from error


def plan_memory(
    checkpoint_dir: Path | Checkpoint,
    *,
    qformat: str = FULL_PRECISION,
    group_size: int = GROUP_SIZE,
    kv_cache_dtype: str = AUTO_DTYPE,
    kv_cache_scale: float | None = None,
    key_cache_dtype: str = AUTO_DTYPE,
    state_dtype: str = FLOAT32,
    target: str | Sequence[str] = CPU,
    backend: str = NATIVE,
    num_threads: int | None = None,
    **limits: Unpack[GivenLimits],
) -> MemoryPlan:
    """Return the memory that an engine built with these limits would need; nothing is built.

    No weights are read, but for a few of recurrent layers if their ``state_dtype`` is to be chosen.
    ``num_threads`` is the number of threads at run time (None: one per available CPU). Raises BuildError, EngineError,
    ArgumentError (num_threads).
    """
    chosen, targets = backend_of([target] if isinstance(target, str) else target, backend)
    chosen.check(targets, False, Tuning())
    checkpoint = checkpoint_dir if isinstance(checkpoint_dir, Checkpoint) else open_checkpoint(checkpoint_dir)
    bounds = _default_limits(checkpoint, chosen)(**limits)
    recipe = _recipe(qformat, group_size, kv_cache_dtype, kv_cache_scale, key_cache_dtype)
    caches = {"kv_cache_dtype": kv_cache_dtype, "key_cache_dtype": key_cache_dtype, "state_dtype": state_dtype}
    job = _fuse(checkpoint, bounds, recipe, caches, chosen, targets, False, Tuning(), _ignore, placeholder)
    firsts = [first for first, *_ in ranks_of(job)]
    memories = [chosen.memory(rank, num_threads) for rank in firsts]
    links: dict[str, int] = {}
    for rank in firsts:
        links |= {name: max(read, links.get(name, 0)) for name, read in link_bytes(rank).items()}
    largest = max(memories, key=lambda memory: memory.total)
    return replace(largest, link_bytes=links, stage_bytes=tuple(memory.total for memory in memories))


def choose_limits(
    checkpoint: Checkpoint,
    device_memory: int | None = None,
    *,
    target: str | Sequence[str] = CPU,
    backend: str = NATIVE,
    **given: Any,
) -> BuildLimits:
    """Return the limits of an engine: the :class:`GivenLimits` that are ``given``, and defaults for the others.

    With ``device_memory``, the bytes of each GPU, the defaults are the largest that leave room for a KV cache, if the
    model has one. The other arguments are those of :func:`plan_memory`, whose errors it raises.
    """
    chosen, _ = backend_of([target] if isinstance(target, str) else target, backend)
    limits: GivenLimits = {name: given.pop(name) for name in GivenLimits.__annotations__ if name in given}  # type: ignore
    limits_of = _default_limits(checkpoint, chosen)
    if device_memory is None or chosen.kind != "cuda" or checkpoint.kind.whole_prompts:
        return limits_of(**limits)

    def memory_of(bounds: BuildLimits) -> MemoryPlan:
        arguments: dict[str, Any] = {**given, **limits, **bounds.given()}
        return plan_memory(checkpoint, target=target, backend=backend, **arguments)

    return fit_limits(limits_of, memory_of, device_memory, **limits)


def _default_limits(checkpoint: Checkpoint, backend: Backend) -> Callable[..., BuildLimits]:
    """Return a function that makes limits for the checkpoint's model, with defaults for those that are not given."""
    positions = checkpoint.config.max_position_embeddings
    return partial(BuildLimits.for_model, positions, backend.defaults, whole_prompts=checkpoint.kind.whole_prompts)


def least_tp_size(checkpoint_dir: Path | Checkpoint, device_memory: int, **given: Any) -> int | None:
    """Return the smallest number of ranks of which each fits into ``device_memory`` bytes; None if no number does.

    To fit, a rank has room for the KV cache of a full batch if ``max_batch_size`` is given, else of one sequence.
    ``given`` are the arguments of :func:`plan_memory` except tp_size. Numbers of ranks that do not divide the model are
    skipped. Raises the errors of :func:`plan_memory`.
    """
    checkpoint = checkpoint_dir if isinstance(checkpoint_dir, Checkpoint) else open_checkpoint(checkpoint_dir)
    least = given.get("moe_ep_size") or 1
    for tp_size in range(least, MAX_TP_SIZE + 1):
        try:
            memory = plan_memory(checkpoint, **given, tp_size=tp_size)
        except BuildError:
            if tp_size == least:
                raise
            continue
        cache = memory.cache_use.num_bytes if given.get("max_batch_size") is None else memory.kv_cache
        if memory.total - memory.kv_cache + cache <= device_memory:
            return tp_size
    return None


def _recipe(
    qformat: str, group_size: int, kv_cache_dtype: str, kv_cache_scale: float | None, key_cache_dtype: str
) -> Recipe:
    rounds = kv_cache_dtype in KV_CACHE_DTYPES
    return Recipe(
        qformat,
        group_size=group_size,
        kv_cache_dtype=kv_cache_dtype if rounds else None,
        kv_cache_scale=kv_cache_scale,
        key_cache_dtype=key_cache_dtype if rounds else AUTO_DTYPE,
    )


def _ignore(work: str, done: int, total: int) -> None:
    """Ignore progress: the callback if the caller gives none."""
    del work, done, total


def _path(path: Path | None) -> Path | None:
    return None if path is None else Path(path)


def _fuse(
    checkpoint: Checkpoint,
    limits: BuildLimits,
    recipe: Recipe,
    caches: Mapping[str, str],
    backend: Backend,
    targets: tuple[str, ...],
    strip_plan: bool,
    tuning: Tuning,
    report: Progress,
    statistics: Callable[[str], Statistics],
) -> BuildJob:
    """Make the job whose graph is the network fused by ``backend``; ``caches``: the types of caches that are wanted.

    Raises BuildError.
    """
    kv_cache_dtype, key_cache_dtype = caches["kv_cache_dtype"], caches["key_cache_dtype"]
    if limits.max_draft_len and backend.kind == "tensorrt":
        raise BuildError(
            f"max_draft_len is {limits.max_draft_len} for {', '.join(targets)}: engines of the backend tensorrt "
            "take no draft tokens yet, so leave max_draft_len out"
        )
    if limits.deterministic and backend.kind == "tensorrt":
        raise BuildError(
            f"deterministic is given for {', '.join(targets)}: TensorRT promises no order of additions, so leave "
            "deterministic out, or build with --backend native for cpu or sm_90"
        )
    if has_features(checkpoint.model.graph) and backend.kind == "tensorrt":
        raise BuildError(
            "the network has features for a draft head, which engines of TensorRT neither keep nor read: build "
            "with --backend native, or convert the model without --draft_model_dir"
        )
    check_recurrent(checkpoint.model.graph, backend.kind)
    of_attention = {"kv_cache_dtype": kv_cache_dtype, "key_cache_dtype": key_cache_dtype}
    check_module(checkpoint.kind, limits, of_attention, backend.kind)
    check_prompt_embeds(limits, backend.kind, checkpoint.config.family, checkpoint.model.graph)
    check_divisible(checkpoint.model.graph, limits, backend.kind)
    check_strategy(limits, backend.kind)
    check_lora(limits, backend.kind, targets)
    quantized, _ = quantize_network(checkpoint.model, recipe, statistics)
    check_lora_of_quantized(limits.max_lora_rank, quantized_as(quantized))
    if kv_cache_dtype in PLAIN_DTYPES:
        quantized = with_plain_kv_cache(quantized)
    if key_cache_dtype in PLAIN_DTYPES:
        quantized = with_plain_kv_cache(quantized, of_keys=True)
    fused = backend.fuse(quantized, checkpoint.config, kv_cache_dtype, limits)
    check_key_cache(key_cache_dtype, fused.kv_cache_dtype)
    check_experts(fused.graph, limits.moe_ep_size)
    rounding = round_states(fused.graph, caches["state_dtype"], has_weights=checkpoint.path is not None)
    if rounding is not None:
        fused = with_states(fused, rounding.dtype)
    return BuildJob(
        checkpoint=checkpoint,
        graph=fused.graph,
        fusions=fused.fusions,
        limits=replace(limits, cache_groups=fused.cache_groups, tokens_per_row=fused.tokens_per_row),
        qformat=quantized_as(quantized),
        kv_cache_dtype=fused.kv_cache_dtype,
        key_cache_dtype=key_cache_dtype,
        targets=targets,
        strip_plan=strip_plan,
        tuning=tuning,
        report=report,
        lora_projections=fused.lora_projections,
        state_rounding=rounding,
    )


def _copy_companions(checkpoint: Checkpoint, directory: Path) -> dict[str, str]:
    """Copy the files that travel with an engine; returns the checksum of each."""
    checksums = {}
    for source in checkpoint.companion_files():
        data = read_foreign(source, max_file_bytes(source.name), inside=source.parent)
        (directory / source.name).write_bytes(data)
        checksums[source.name] = f"{_core.crc32c(data):08x}"
    return checksums
