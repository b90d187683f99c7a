"""Describes an engine: model, limits, operators, fusions made and refused, memory, size; or a checkpoint likewise."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from trtllm_lite.common.vocabulary import FORMAT_VERSION, PLAN_VERSION
from trtllm_lite.engine.beside import read_encoder_beside
from trtllm_lite.engine.cache_use import CacheUse, cache_use
from trtllm_lite.engine.contents import (
    FusionSummary,
    KernelUse,
    WeightGroup,
    kernel_uses,
    summarize,
    weight_groups,
    workspace_parts,
)
from trtllm_lite.engine.format import COMPANION_FILES, CONFIG_FILE
from trtllm_lite.engine.inspect_text import print_inspection
from trtllm_lite.engine.manifest import Accuracy, Manifest, Tactic
from trtllm_lite.engine.modules import Module
from trtllm_lite.engine.outline import Outline, outline
from trtllm_lite.engine.plan import CallInstruction, Instruction, LaunchInstruction, Plan, dotted
from trtllm_lite.engine.provenance import Provenance
from trtllm_lite.engine.provenance_facts import provenance_of
from trtllm_lite.engine.reader import EngineFile, read_engine
from trtllm_lite.engine.records import to_json
from trtllm_lite.engine.state_facts import state_facts

# A note on what has been tested for TensorRT engines.
_UNVERIFIED = "execution has not been verified on RTX hardware"


@dataclass(frozen=True)
class EncoderBeside:
    """The encoder in a decoder's engine directory; ``kind`` is its module's, ``weights`` are bytes."""

    kind: str
    architecture: str
    embedding_size: int
    weights: int
    limits: dict[str, int | str]


@dataclass(frozen=True)
class Inspection:
    """A description of an engine or checkpoint (``kind``); ``memory`` and ``file_bytes`` are in bytes.

    ``operators`` counts the fused operators of a CPU engine and the standard operators of a checkpoint; ``programs``
    counts the instructions of each program of a GPU engine, by the kernel's name or ``matmul``. ``checksums`` are the
    CRC-32C that the manifest has of files; ``provenance`` is the unchecked content of the file beside the engine,
    and ``encoder`` describes the encoder in the engine's directory, if there is one. ``states`` says what the build
    measured of recurrent layers, ``plugins`` which operators are of other packages. For a checkpoint ``limits``,
    ``expansions``, most of ``memory`` and all fields with defaults are empty, ``gather_context_logits`` and
    ``cache_use`` are None, and ``fusions`` are the fusions that a build would make.
    """

    kind: str
    path: str
    producer: str
    file_bytes: dict[str, int]
    model: dict[str, Any]
    target: str
    qformat: str
    accuracy: Accuracy | None
    limits: dict[str, int | str]
    gather_context_logits: bool | None
    deterministic: bool
    kv_cache: dict[str, Any]
    cache_use: CacheUse | None
    memory: dict[str, int]
    operators: dict[str, int]
    programs: dict[str, dict[str, int]]
    fusions: tuple[FusionSummary, ...]
    tactics: tuple[Tactic, ...]
    expansions: tuple[Tactic, ...]
    modules: tuple[Module, ...] = ()
    workspace: dict[str, int] = field(default_factory=dict)
    outlines: tuple[Outline, ...] = ()
    weights: tuple[WeightGroup, ...] = ()
    kernels: tuple[KernelUse, ...] = ()
    checksums: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    provenance: Provenance | None = None
    encoder: EncoderBeside | None = None
    states: dict[str, str] = field(default_factory=dict)
    plugins: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for JSON."""
        return asdict(self)

    def render(self, console: Console, *, kernels: bool = False) -> None:
        """Print the inspection; with ``kernels`` also how each kernel and product of a GPU engine was chosen."""
        print_inspection(self, console, kernels=kernels)


def _qformat(qformat: str, weights: Sequence[WeightGroup]) -> str:
    """How matrices are stored; for types of a GGUF file, also their form in the engine, which joins matrices."""
    if not qformat.startswith("gguf "):
        return qformat
    dtypes = {group.dtype for group in weights if len(group.shape) > 1 and group.name.endswith("weight")}
    return f"{qformat}, here as {', '.join(sorted(dtypes))}"


def inspect_engine(path: Path) -> Inspection:
    """Describe an engine directory or an engine file. Raises EngineError as the readers do."""
    engine = read_engine(path)
    manifest, weights = engine.manifest, weight_groups(engine.plan)
    return Inspection(
        kind="engine",
        path=str(path),
        producer=manifest.producer,
        file_bytes=_file_bytes(engine),
        model=to_json(manifest.model) | {"num_parameters": manifest.num_parameters},
        target=_target(engine),
        qformat=_qformat(manifest.qformat, weights),
        accuracy=manifest.accuracy,
        limits=_limits(manifest),
        gather_context_logits=manifest.gather_context_logits,
        deterministic=manifest.deterministic,
        kv_cache=to_json(manifest.kv_cache),
        cache_use=cache_use(manifest.kv_cache, manifest.limits.max_seq_len),
        memory=_memory(manifest),
        operators=_operators(engine.plan),
        programs=_programs(engine.plan),
        fusions=summarize(manifest.fusions),
        tactics=manifest.tactics,
        expansions=manifest.expansions,
        modules=manifest.modules,
        workspace=workspace_parts(engine),
        outlines=tuple(outline(engine.plan, program) for program in engine.plan.programs),
        weights=weights,
        kernels=kernel_uses(engine),
        checksums=manifest.files,
        versions=_versions(engine),
        provenance=provenance_of(engine),
        encoder=_encoder_in(Path(path)),
        states=state_facts(manifest.state_rounding, manifest.state_forms),
        plugins={f"{use.package} {use.version}": ", ".join(use.operators) for use in manifest.plugins},
    )


def _encoder_in(path: Path) -> EncoderBeside | None:
    """The encoder in the engine directory ``path``; a file has nothing beside it."""
    found = read_encoder_beside(path)
    if found is None:
        return None
    manifest = found.manifest
    return EncoderBeside(
        kind=manifest.module.kind,
        architecture=manifest.model.architecture,
        embedding_size=manifest.module.outputs[0].size,
        weights=manifest.memory.weights,
        limits=_limits(manifest),
    )


def _file_bytes(engine: EngineFile) -> dict[str, int]:
    ranks = () if engine.manifest.mapping.rank else engine.manifest.engine_files[1:]
    others = (engine.path.parent / name for name in (*ranks, CONFIG_FILE, *COMPANION_FILES))
    return {engine.path.name: engine.file_bytes} | {file.name: file.stat().st_size for file in others if file.is_file()}


def _versions(engine: EngineFile) -> dict[str, str]:
    """The versions of the engine's producer, of its format, and of the library that timed its products."""
    versions = {
        "engine made by": engine.manifest.producer,
        "checkpoint made by": engine.manifest.model.producer,
        "version of the container": str(FORMAT_VERSION),
        "version of the plan": str(PLAN_VERSION),
    }
    cuda = engine.plan.cuda
    measured = {} if cuda is None or not cuda.cublaslt_version else {"cuBLAS": dotted(cuda.cublaslt_version)}
    return versions | measured


def _limits(manifest: Manifest) -> dict[str, int | str]:
    """The limits, the highest rank of adapters if the engine takes any, and the sizes by which it is divided."""
    adapters = {} if manifest.lora is None else {"max_lora_rank": manifest.lora.max_rank}
    return {**to_json(manifest.limits), **adapters, **manifest.divided}


def _target(engine: EngineFile) -> str:
    """``cpu``, or the architectures of a GPU engine and the library that it needs."""
    target, cuda = engine.manifest.target, engine.plan.cuda
    if target.kind == "tensorrt":
        return f"{' '.join(target.archs)}, by TensorRT ({_UNVERIFIED})"
    if cuda is None:
        return target.kind
    stripped = ", without weights" if engine.manifest.stripped else ""
    wanted = f", with cuBLAS {dotted(cuda.cublaslt_version)}" if cuda.cublaslt_version else ""
    return f"{' '.join(target.archs)}{stripped}{wanted}"


def _operators(plan: Plan) -> dict[str, int]:
    """The number of calls of each operator, in engines that call operators."""
    called = (i.op for program in plan.programs for i in program.instructions if isinstance(i, CallInstruction))
    return dict(Counter(called).most_common())


def _programs(plan: Plan) -> dict[str, dict[str, int]]:
    """The launches and products of each program, in engines with compiled kernels."""
    if plan.cuda is None:
        return {}
    several = len({program.arch for program in plan.programs}) > 1
    return {
        f"{program.name} ({program.arch})" if several else program.name: dict(
            Counter(_ran(plan, instruction) for instruction in program.instructions)
        )
        for program in plan.programs
    }


def _ran(plan: Plan, instruction: Instruction) -> str:
    return plan.kernels[instruction.kernel].name if isinstance(instruction, LaunchInstruction) else instruction.kind


def _memory(manifest: Manifest) -> dict[str, int]:
    memory: dict[str, int] = to_json(manifest.memory)
    return memory | {"total": sum(memory.values())}
