"""The build stage: checkpoint directory in, engine directory out."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx_ir as ir

from trtllm_lite import _core
from trtllm_lite.builder.checkpoint import Checkpoint, open_checkpoint
from trtllm_lite.builder.cpu.planning import make_program
from trtllm_lite.builder.cuda.engine import cuda_memory, cuda_parts, parts_of
from trtllm_lite.builder.cuda.products.contests import lower_contests
from trtllm_lite.builder.cuda.products.measure import FAST, THOROUGH, Effort, measure_algorithms, measure_contests
from trtllm_lite.builder.cuda.products.timing_cache import TimingCache, load_timing_cache, require_output
from trtllm_lite.builder.cuda.targets import CPU, parse_targets
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.builder.memory import MemoryPlan, kv_cache_of, plan_bytes
from trtllm_lite.builder.parts import EngineParts
from trtllm_lite.builder.pipeline import check_all_fused, run_passes
from trtllm_lite.engine.format import ALIGNMENT, CONFIG_FILE, ENGINE_FILE, PRODUCER
from trtllm_lite.engine.manifest import Fusion, Limits, Manifest, Target
from trtllm_lite.engine.writer import write_engine
from trtllm_lite.errors import BuildError, DeviceError, EngineError
from trtllm_lite.files import atomic_directory, require_space
from trtllm_lite.plugins.launch import Device

# Called with (stage, done, total): stage is "fuse" (passes and planning), "compile" (GPU kernels),
# "measure" (products) or "write" (weights).
Progress = Callable[[str, int, int], None]


def build_engine(
    checkpoint_dir: Path | Checkpoint,
    output_dir: Path,
    *,
    max_batch_size: int = BuildLimits.max_batch_size,
    max_input_len: int = BuildLimits.max_input_len,
    max_seq_len: int = BuildLimits.max_seq_len,
    max_num_tokens: int | None = None,
    tokens_per_block: int = BuildLimits.tokens_per_block,
    gather_context_logits: bool = False,
    target: str | Sequence[str] = CPU,
    strip_plan: bool = False,
    input_timing_cache: Path | None = None,
    output_timing_cache: Path | None = None,
    fast_build: bool = False,
    progress: Progress | None = None,
) -> Manifest:
    """Compile the checkpoint into ``output_dir``, which appears whole or not at all; returns the engine's manifest.

    Limits are those of :class:`BuildLimits`; ``target`` is ``cpu``, or one or several GPU architectures (``sm_90``).
    The same checkpoint and limits give the same bytes on every machine. Memory peaks at a few times the largest weight.

    ``input_timing_cache`` chooses algorithms of matrix products by what was measured on a GPU before; with
    ``output_timing_cache`` this machine's GPU is measured, and what was found written there and used, with what the
    input cache has besides, which must be of such a GPU and the same cuBLAS; ``fast_build`` measures fewer sizes and
    candidates, and none at the card's power limit.
    With ``strip_plan`` the weights stay out, for benchmarks: the runtime makes random ones on the GPU.

    Raises BuildError (limits, target, or a network that does not fuse), EngineError (the checkpoint), OutputError.
    """
    limits = BuildLimits(
        max_batch_size, max_input_len, max_seq_len, max_num_tokens, tokens_per_block, gather_context_logits
    )
    report = progress or _ignore
    devices = parse_targets([target] if isinstance(target, str) else target)
    if strip_plan and not devices:
        raise BuildError("strip_plan is given for the cpu target: CPU engines map their weights, so pass a GPU target")
    report("fuse", 0, 1)
    checkpoint = checkpoint_dir if isinstance(checkpoint_dir, Checkpoint) else open_checkpoint(checkpoint_dir)
    if checkpoint.path is None and not strip_plan:
        raise BuildError("a model config has no weights to build with: pass a checkpoint, or strip_plan for benchmarks")
    graph, fusions = _fuse(checkpoint, limits)
    report("fuse", 1, 1)
    if devices:
        timings = None if input_timing_cache is None else load_timing_cache(Path(input_timing_cache))
        if output_timing_cache is not None:
            _require_measurable(devices, Path(output_timing_cache))
            effort = FAST if fast_build else THOROUGH
            timings = _measure(checkpoint, graph, limits, devices[0], fusions, report, timings, effort)
            timings.save(Path(output_timing_cache))
        elif fast_build:
            raise BuildError("fast_build is given, and nothing is measured: leave it out, or pass output_timing_cache")
        parts = cuda_parts(graph, checkpoint.config.dtype, limits, devices, partial(report, "compile"), timings)
    else:
        _refuse_timing_caches(input_timing_cache, output_timing_cache, fast_build)
        parts = _cpu_parts(graph, limits)
    with atomic_directory(Path(output_dir), CONFIG_FILE) as directory:
        files = _copy_tokenizer(checkpoint, directory)
        manifest = _manifest(checkpoint, limits, parts, fusions, files, strip_plan)
        _write(directory, parts, manifest, partial(report, "write"))
    return manifest


def _write(directory: Path, parts: EngineParts, manifest: Manifest, progress: Callable[[int, int], None]) -> None:
    """The engine and its manifest. Raises OutputError if there is no room, BuildError if the runtime refuses it."""
    weights = () if manifest.stripped else parts.weights
    require_space(directory, sum(weight.num_bytes for weight in weights))
    write_engine(
        directory / ENGINE_FILE,
        weights,
        parts.plan,
        manifest.to_json(),
        progress,
        cubins=parts.cubins,
        alignment=parts.alignment,
    )
    _read_back(directory / ENGINE_FILE)
    (directory / CONFIG_FILE).write_text(manifest.to_json(indent=2) + "\n")


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
    max_batch_size: int = BuildLimits.max_batch_size,
    max_input_len: int = BuildLimits.max_input_len,
    max_seq_len: int = BuildLimits.max_seq_len,
    max_num_tokens: int | None = None,
    tokens_per_block: int = BuildLimits.tokens_per_block,
    gather_context_logits: bool = False,
    target: str | Sequence[str] = CPU,
    num_threads: int | None = None,
) -> MemoryPlan:
    """What an engine built with these limits would need, without building it or reading a weight.

    ``num_threads`` is the number of threads at run time (None: one per available CPU). Raises BuildError, EngineError,
    ArgumentError (num_threads).
    """
    limits = BuildLimits(
        max_batch_size, max_input_len, max_seq_len, max_num_tokens, tokens_per_block, gather_context_logits
    )
    checkpoint = checkpoint_dir if isinstance(checkpoint_dir, Checkpoint) else open_checkpoint(checkpoint_dir)
    devices = parse_targets([target] if isinstance(target, str) else target)
    graph, _ = _fuse(checkpoint, limits)
    if devices:
        return cuda_memory(graph, checkpoint.config.dtype, limits, devices)
    # Affinity and control groups decide how many threads "all" is; only the runtime knows.
    threads = _core.resolve_num_threads(num_threads or 0)
    return plan_bytes(make_program(graph, limits), threads)


def _ignore(stage: str, done: int, total: int) -> None:
    """The progress callback of those who gave none."""
    del stage, done, total


def _fuse(checkpoint: Checkpoint, limits: BuildLimits) -> tuple[ir.Graph, list[Fusion]]:
    """The network as fused operators."""
    limits.check_model(checkpoint.config.max_position_embeddings)
    model, fusions = run_passes(checkpoint.model)
    check_all_fused(model, fusions)
    return model.graph, fusions


def _require_measurable(devices: Sequence[Device], output: Path) -> None:
    """Raise BuildError or OutputError if nothing could be measured for ``devices``, or kept in ``output``."""
    if len(devices) != 1:
        archs = ", ".join(device.arch for device in devices)
        raise BuildError(f"output_timing_cache is given for the targets {archs}: pass that of the GPU here")
    require_output(output)
    try:
        _core.cuda_device_memory()
    except DeviceError as error:
        raise BuildError(
            f"output_timing_cache measures on the GPU of this machine: {error}; without one leave it out"
        ) from error


def _measure(
    checkpoint: Checkpoint,
    graph: ir.Graph,
    limits: BuildLimits,
    device: Device,
    fusions: list[Fusion],
    report: Progress,
    known: TimingCache | None,
    effort: Effort,
) -> TimingCache:
    """Time what may compute the products, on this machine's GPU, in engines without weights that do nothing else."""
    lowered, contests = lower_contests(graph, checkpoint.config.dtype, limits, device, effort.max_contestants)

    def make(directory: str, timings: TimingCache | None) -> Path:
        parts = parts_of(lowered, partial(report, "compile"), timings)
        engine = Path(directory) / ENGINE_FILE
        manifest = _manifest(checkpoint, limits, parts, fusions, files={}, stripped=True)
        write_engine(engine, (), parts.plan, manifest.to_json(), cubins=parts.cubins, alignment=parts.alignment)
        return engine

    progress = partial(report, "measure")
    with TemporaryDirectory() as directory:
        cache = measure_algorithms(make(directory, None), device.arch, limits.num_tokens, effort, known, progress)
    with TemporaryDirectory() as directory:
        return cache.merged((), measure_contests(make(directory, cache), contests, effort, progress))


def _refuse_timing_caches(*given: Path | bool | None) -> None:
    if any(given):
        raise BuildError("a timing cache or fast_build is given for the cpu target: CPU engines need no timing")


def _cpu_parts(graph: ir.Graph, limits: BuildLimits) -> EngineParts:
    program = make_program(graph, limits)
    return EngineParts(
        target=Target(CPU),
        plan=program.plan.to_json(),
        weights=program.weights,
        kv_cache=kv_cache_of(program.plan, limits.tokens_per_block),
        memory=plan_bytes(program, num_threads=1),
        cubins={},
        alignment=ALIGNMENT,
    )


def _copy_tokenizer(checkpoint: Checkpoint, directory: Path) -> dict[str, str]:
    """Copy the tokenizer files; returns the checksum of each."""
    checksums = {}
    for source in checkpoint.tokenizer_files():
        data = source.read_bytes()
        (directory / source.name).write_bytes(data)
        checksums[source.name] = f"{_core.crc32c(data):08x}"
    return checksums


def _manifest(
    checkpoint: Checkpoint,
    limits: BuildLimits,
    parts: EngineParts,
    fusions: list[Fusion],
    files: dict[str, str],
    stripped: bool,
) -> Manifest:
    return Manifest(
        producer=PRODUCER,
        target=parts.target,
        model=checkpoint.config,
        limits=Limits(limits.max_batch_size, limits.max_input_len, limits.max_seq_len, limits.num_tokens),
        kv_cache=parts.kv_cache,
        gather_context_logits=limits.gather_context_logits,
        files=files,
        memory=parts.memory.to_manifest(),
        fusions=tuple(fusions),
        stripped=stripped,
        tactics=parts.tactics,
    )
