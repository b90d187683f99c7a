"""Lists the contents of an engine file for people: weights without layer numbers, kernels with resources, workspace."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from trtllm_lite.common.units import counted
from trtllm_lite.engine.format import CUBIN_PREFIX
from trtllm_lite.engine.manifest import Fusion, Tactic
from trtllm_lite.engine.plan import LaunchInstruction, Plan
from trtllm_lite.engine.reader import EngineFile
from trtllm_lite.engine.repeated import pattern


@dataclass(frozen=True)
class FusionSummary:
    """One pass: the number of its candidates, the number of fusions, and the site and reason of each refusal."""

    pass_name: str
    fused: int
    candidates: int
    not_fused: dict[str, str]


@dataclass(frozen=True)
class WeightGroup:
    """``count`` weights, alike in all layers: ``name`` has a star for a layer's number, ``num_bytes`` is the sum."""

    name: str
    count: int
    dtype: str
    shape: tuple[int | str, ...]
    layout: str
    num_bytes: int


@dataclass(frozen=True)
class KernelUse:
    """A compiled kernel for one architecture, and the instructions that launch it.

    ``threads`` and ``shared_bytes`` are per block; ``cubin`` is the key of the code in the file, ``cubin_bytes`` its
    size.
    """

    name: str
    arch: str
    threads: int
    shared_bytes: int
    launches: int
    cubin: str
    cubin_bytes: int


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


def counted_expansions(expansions: Iterable[Tactic]) -> dict[str, str]:
    """The number of weights and the reason, for each kind of expansion."""
    counts = Counter((item.choice, item.reason) for item in expansions)
    return {choice: f"{counted(count, 'weight')}: {reason}" for (choice, reason), count in counts.items()}


def weight_groups(plan: Plan) -> tuple[WeightGroup, ...]:
    """All weights, in the order of the plan."""
    counts = Counter(
        (pattern(tensor.name), tensor.dtype, tensor.shape, tensor.layout, plan.max_bytes(tensor))
        for tensor in plan.tensors
        if tensor.kind == "weight"
    )
    return tuple(
        WeightGroup(name, count, dtype, shape, layout, count * size)
        for (name, dtype, shape, layout, size), count in counts.items()
    )


def kernel_uses(engine: EngineFile) -> tuple[KernelUse, ...]:
    """All kernels of a GPU engine, in the order of the plan."""
    launches = Counter(
        (instruction.kernel, program.arch)
        for program in engine.plan.programs
        for instruction in program.instructions
        if isinstance(instruction, LaunchInstruction)
    )
    return tuple(
        KernelUse(
            name=kernel.name,
            arch=arch,
            threads=kernel.threads,
            shared_bytes=kernel.shared_bytes,
            launches=launches[number, arch],
            cubin=key,
            cubin_bytes=engine.stored(CUBIN_PREFIX + key).num_bytes,
        )
        for number, kernel in enumerate(engine.plan.kernels)
        for arch, key in kernel.cubins.items()
    )


def workspace_parts(engine: EngineFile) -> dict[str, int]:
    """The bytes of the manifest's workspace by use."""
    plan, workspace = engine.plan, engine.manifest.memory.workspace
    parts = {"arena": plan.arena_bytes, "state kept between steps": plan.state_bytes}
    if plan.cuda is not None:
        parts["workspace of cuBLASLt"] = plan.cuda.workspace_bytes
    return parts | {"inputs of a step, and scratch": max(workspace - sum(parts.values()), 0)}
