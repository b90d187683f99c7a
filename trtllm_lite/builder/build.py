"""The build stage: checkpoint directory in, engine directory out."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trtllm_lite import _core
from trtllm_lite.builder.checkpoint import Checkpoint, open_checkpoint
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.builder.memory import MemoryPlan, kv_cache_of, plan_bytes
from trtllm_lite.builder.pipeline import check_all_fused, run_passes
from trtllm_lite.builder.planning import Program, make_program
from trtllm_lite.engine.format import CONFIG_FILE, ENGINE_FILE, PRODUCER
from trtllm_lite.engine.manifest import Fusion, Limits, Manifest, Target
from trtllm_lite.engine.writer import write_engine
from trtllm_lite.errors import BuildError
from trtllm_lite.files import atomic_directory, require_space

TARGETS = ("cpu",)

# Called with (stage, done, total): stage is "fuse" (passes and planning) or "write" (weights).
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class _Compiled:
    checkpoint: Checkpoint
    program: Program
    fusions: list[Fusion]


def build_engine(
    checkpoint_dir: Path,
    output_dir: Path,
    *,
    max_batch_size: int = BuildLimits.max_batch_size,
    max_input_len: int = BuildLimits.max_input_len,
    max_seq_len: int = BuildLimits.max_seq_len,
    max_num_tokens: int | None = None,
    tokens_per_block: int = BuildLimits.tokens_per_block,
    gather_context_logits: bool = False,
    target: str = "cpu",
    progress: Progress | None = None,
) -> Manifest:
    """Compile the checkpoint into ``output_dir``, which appears whole or not at all; returns the engine's manifest.

    Limits are those of :class:`BuildLimits`. The same checkpoint and limits give the same bytes on every machine.
    Memory peaks at a few times the largest weight.

    Raises BuildError (limits, target, or a network that does not fuse), EngineError (the checkpoint), OutputError.
    """
    limits = BuildLimits(
        max_batch_size, max_input_len, max_seq_len, max_num_tokens, tokens_per_block, gather_context_logits
    )
    report = progress or _ignore
    report("fuse", 0, 1)
    compiled = _compile(checkpoint_dir, limits, target)
    report("fuse", 1, 1)
    weights = compiled.program.weights
    with atomic_directory(Path(output_dir), CONFIG_FILE) as directory:
        require_space(directory, sum(weight.num_bytes for weight in weights))
        files = _copy_tokenizer(compiled.checkpoint, directory)
        manifest = _manifest(compiled, limits, target, files)
        write_engine(
            directory / ENGINE_FILE,
            weights,
            compiled.program.plan.to_json(),
            manifest.to_json(),
            progress=lambda done, total: report("write", done, total),
        )
        (directory / CONFIG_FILE).write_text(manifest.to_json(indent=2) + "\n")
    return manifest


def plan_memory(
    checkpoint_dir: Path,
    *,
    max_batch_size: int = BuildLimits.max_batch_size,
    max_input_len: int = BuildLimits.max_input_len,
    max_seq_len: int = BuildLimits.max_seq_len,
    max_num_tokens: int | None = None,
    tokens_per_block: int = BuildLimits.tokens_per_block,
    gather_context_logits: bool = False,
    target: str = "cpu",
    num_threads: int | None = None,
) -> MemoryPlan:
    """What an engine built with these limits would need, without building it or reading a weight.

    ``num_threads`` is the number of threads at run time (None: one per available CPU). Raises BuildError, EngineError,
    ArgumentError (num_threads).
    """
    limits = BuildLimits(
        max_batch_size, max_input_len, max_seq_len, max_num_tokens, tokens_per_block, gather_context_logits
    )
    # Affinity and control groups decide how many threads "all" is; only the runtime knows.
    threads = _core.resolve_num_threads(num_threads or 0)
    return plan_bytes(_compile(checkpoint_dir, limits, target).program, threads)


def _ignore(stage: str, done: int, total: int) -> None:
    """The progress callback of those who gave none."""
    del stage, done, total


def _compile(checkpoint_dir: Path, limits: BuildLimits, target: str) -> _Compiled:
    if target not in TARGETS:
        raise BuildError(f"the target is {target!r}: expected one of {', '.join(TARGETS)}")
    checkpoint = open_checkpoint(checkpoint_dir)
    limits.check_model(checkpoint.config.max_position_embeddings)
    model, fusions = run_passes(checkpoint.model)
    check_all_fused(model, fusions)
    return _Compiled(checkpoint, make_program(model.graph, limits), fusions)


def _copy_tokenizer(checkpoint: Checkpoint, directory: Path) -> dict[str, str]:
    """Copy the tokenizer files; returns the checksum of each."""
    checksums = {}
    for source in checkpoint.tokenizer_files():
        data = source.read_bytes()
        (directory / source.name).write_bytes(data)
        checksums[source.name] = f"{_core.crc32c(data):08x}"
    return checksums


def _manifest(compiled: _Compiled, limits: BuildLimits, target: str, files: dict[str, str]) -> Manifest:
    return Manifest(
        producer=PRODUCER,
        target=Target(kind=target),
        model=compiled.checkpoint.config,
        limits=Limits(limits.max_batch_size, limits.max_input_len, limits.max_seq_len, limits.num_tokens),
        kv_cache=kv_cache_of(compiled.program.plan, limits.tokens_per_block),
        gather_context_logits=limits.gather_context_logits,
        files=files,
        memory=plan_bytes(compiled.program, num_threads=1).to_manifest(),
        fusions=tuple(compiled.fusions),
    )
