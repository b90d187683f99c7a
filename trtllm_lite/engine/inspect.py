"""Describes an engine or a checkpoint: model, limits, operators, fusions made and refused, memory, size."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trtllm_lite.engine.cache_use import CacheUse, cache_use
from trtllm_lite.engine.format import CONFIG_FILE, ENGINE_FILE, TOKENIZER_FILES
from trtllm_lite.engine.manifest import Accuracy, Fusion, Manifest, Tactic
from trtllm_lite.engine.plan import CallInstruction, Instruction, LaunchInstruction, Plan, dotted
from trtllm_lite.engine.reader import EngineFile, read_engine
from trtllm_lite.engine.records import to_json
from trtllm_lite.errors import EngineError
from trtllm_lite.network.config import NETWORK_FILE
from trtllm_lite.printable import one_line
from trtllm_lite.units import counted, format_bytes


@dataclass(frozen=True)
class FusionSummary:
    """One pass: the number of its candidates, how many it fused, and site and reason of each that it did not fuse."""

    pass_name: str
    fused: int
    candidates: int
    not_fused: dict[str, str]


@dataclass(frozen=True)
class Inspection:
    """``kind`` is ``engine`` or ``checkpoint``; ``memory`` and ``file_bytes`` are in bytes.

    ``operators`` counts the fused operators of a CPU engine and the standard operators of a checkpoint; ``programs``
    counts the instructions of each program of a GPU engine, by the kernel's name or ``matmul``. For a checkpoint
    ``limits``, ``expansions`` and most of ``memory`` are empty, ``gather_context_logits`` and ``cache_use`` are None,
    and ``fusions`` are those that a build would make.
    """

    kind: str
    path: str
    producer: str
    file_bytes: dict[str, int]
    model: dict[str, Any]
    target: str
    qformat: str
    accuracy: Accuracy | None
    limits: dict[str, int]
    gather_context_logits: bool | None
    kv_cache: dict[str, Any]
    cache_use: CacheUse | None
    memory: dict[str, int]
    operators: dict[str, int]
    programs: dict[str, dict[str, int]]
    fusions: tuple[FusionSummary, ...]
    tactics: tuple[Tactic, ...]
    expansions: tuple[Tactic, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for JSON."""
        return asdict(self)

    def render(self, console: Console, *, kernels: bool = False) -> None:
        """Print the inspection; with ``kernels`` also how each kernel and product of a GPU engine was chosen."""
        made_for = f" for {self.target}" if self.target else ""
        console.print(Text.assemble((self.kind, "bold"), " ", one_line(self.path)), soft_wrap=True)
        console.print(Text(one_line(f"made by {self.producer}{made_for}")), soft_wrap=True)
        if self.qformat:
            console.print(Text(one_line(f"weights of linear layers: {self.qformat}")), soft_wrap=True)
        _print_table(console, "accuracy", {} if self.accuracy is None else asdict(self.accuracy))
        _print_table(console, "model", self.model)
        _print_table(console, "limits", self._limits())
        _print_table(console, "KV cache", {name: value for name, value in self.kv_cache.items() if name != "groups"})
        _print_cache_use(console, self.cache_use)
        _print_table(console, "memory", {name: _exact_bytes(size) for name, size in self.memory.items()})
        _print_table(console, "files", {name: _exact_bytes(size) for name, size in self.file_bytes.items()})
        _print_table(console, "operators", self.operators)
        _print_table(console, "programs: launches and products of a step", self.programs)
        _print_fusions(console, self.fusions)
        _print_table(console, "expanded weights", counted_expansions(self.expansions))
        _print_tactics(console, self.tactics, kernels)

    def _limits(self) -> dict[str, Any]:
        if self.gather_context_logits is None:
            return self.limits
        return {**self.limits, "gather_context_logits": "yes" if self.gather_context_logits else "no"}


def inspect_path(path: Path) -> Inspection:
    """Describe an engine directory, an engine file or a checkpoint directory; weights are not read.

    Raises EngineError if ``path`` is none of the three or is damaged.
    """
    path = Path(path)
    if (path / NETWORK_FILE).is_file():
        return _inspect_checkpoint(path)
    if path.is_dir() and not (path / ENGINE_FILE).is_file():
        raise EngineError(
            f"{path} is neither an engine (it holds no {ENGINE_FILE}) nor a checkpoint (no {NETWORK_FILE}): "
            "pass the output_dir of `trtllm-lite build` or `trtllm-lite convert`"
        )
    return inspect_engine(path)


def inspect_engine(path: Path) -> Inspection:
    """Describe an engine directory or an engine file."""
    engine = read_engine(path)
    manifest = engine.manifest
    return Inspection(
        kind="engine",
        path=str(path),
        producer=manifest.producer,
        file_bytes=_file_bytes(engine),
        model=to_json(manifest.model) | {"num_parameters": manifest.num_parameters},
        target=_target(engine),
        qformat=manifest.qformat,
        accuracy=manifest.accuracy,
        limits=to_json(manifest.limits),
        gather_context_logits=manifest.gather_context_logits,
        kv_cache=to_json(manifest.kv_cache),
        cache_use=cache_use(manifest.kv_cache, manifest.limits.max_seq_len),
        memory=_memory(manifest),
        operators=_operators(engine.plan),
        programs=_programs(engine.plan),
        fusions=summarize(manifest.fusions),
        tactics=manifest.tactics,
        expansions=manifest.expansions,
    )


def counted_expansions(expansions: Iterable[Tactic]) -> dict[str, str]:
    """For each kind of expansion: the number of weights, and the reason."""
    counts = Counter((item.choice, item.reason) for item in expansions)
    return {choice: f"{counted(count, 'weight')}: {reason}" for (choice, reason), count in counts.items()}


def summarize(fusions: Iterable[Fusion]) -> tuple[FusionSummary, ...]:
    """Decisions grouped by pass, in the order of the passes."""
    by_pass: dict[str, list[Fusion]] = {}
    for fusion in fusions:
        by_pass.setdefault(fusion.pass_name, []).append(fusion)
    return tuple(
        FusionSummary(
            pass_name=name,
            fused=sum(fusion.fused for fusion in decided),
            candidates=len(decided),
            not_fused={fusion.site: fusion.reason for fusion in decided if not fusion.fused},
        )
        for name, decided in by_pass.items()
    )


def _exact_bytes(size: int) -> str:
    """``size`` for people, with the exact number beside it."""
    short = format_bytes(size)
    return short if short.endswith(" B") else f"{short} ({size:,} B)"


def _inspect_checkpoint(path: Path) -> Inspection:
    """Describe a checkpoint. This needs the build extra, which is therefore imported for checkpoints only."""
    try:
        from trtllm_lite.builder.inspect import inspect_checkpoint
    except ImportError as error:
        raise EngineError(
            f"{path} is a checkpoint, and reading its network needs {error.name}: pip install 'trtllm_lite[build]'"
        ) from error
    return inspect_checkpoint(path)


def _file_bytes(engine: EngineFile) -> dict[str, int]:
    others = (engine.path.parent / name for name in (CONFIG_FILE, *TOKENIZER_FILES))
    return {engine.path.name: engine.file_bytes} | {file.name: file.stat().st_size for file in others if file.is_file()}


def _target(engine: EngineFile) -> str:
    """``cpu``, or the architectures of a GPU engine and the version of cuBLASLt that it needs."""
    target, cuda = engine.manifest.target, engine.plan.cuda
    if cuda is None:
        return target.kind
    stripped = ", without weights" if engine.manifest.stripped else ""
    wanted = f", with cuBLAS {dotted(cuda.cublaslt_version)}" if cuda.cublaslt_version else ""
    return f"{' '.join(target.archs)}{stripped}{wanted}"


def _operators(plan: Plan) -> dict[str, int]:
    """How often each operator is called, in engines that call operators."""
    called = (i.op for program in plan.programs for i in program.instructions if isinstance(i, CallInstruction))
    return dict(Counter(called).most_common())


def _programs(plan: Plan) -> dict[str, dict[str, int]]:
    """Launches and products of each program, in engines that have compiled kernels."""
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


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _print_table(console: Console, title: str, rows: Mapping[str, Any]) -> None:
    """Print a table of texts from a file, as they are: neither as markup of rich nor as escapes of a terminal."""
    if not rows:
        return
    table = Table(title=Text(one_line(title)), title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 2))
    for name, value in rows.items():
        table.add_row(Text(one_line(name)), Text(one_line(_text(value))))
    console.print(table)


def _print_cache_use(console: Console, use: CacheUse | None) -> None:
    if use is not None:
        rows = {group.name: group.describe() for group in use.groups}
        _print_table(console, "cache groups", rows | {"in all": use.describe()})


def _print_fusions(console: Console, fusions: tuple[FusionSummary, ...]) -> None:
    _print_table(console, "fusions", {item.pass_name: f"{item.fused} of {item.candidates}" for item in fusions})
    for item in fusions:
        _print_table(console, f"not fused by {item.pass_name}", item.not_fused)


def _print_tactics(console: Console, tactics: tuple[Tactic, ...], all_of_them: bool) -> None:
    if all_of_them:
        _print_table(console, "tactics", {item.site: f"{item.choice}: {item.reason}" for item in tactics})
    elif tactics:
        _print_table(console, "tactics", {"choices made": f"{len(tactics)}; --kernels lists them with their reasons"})
