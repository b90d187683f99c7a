"""Finds the backend that turns a fused network into an engine for the given targets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import onnx_ir as ir

from trtllm_lite.builder.checkpoint import Checkpoint
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.builder.memory import MemoryPlan
from trtllm_lite.builder.parts import EngineParts
from trtllm_lite.engine.manifest import Fusion
from trtllm_lite.errors import BuildError, shown

# Called with (stage, done, total): stage is "fuse" (passes and planning), "compile" (GPU kernels),
# "measure" (products) or "write" (weights).
Progress = Callable[[str, int, int], None]


AUTO_DTYPE = "auto"  # whatever is usual on the target


@dataclass(frozen=True)
class Tuning:
    """The measurements, old or to be made, that choose among ways to compute; see ``build_engine``."""

    input_timing_cache: Path | None = None
    output_timing_cache: Path | None = None
    fast_build: bool = False


@dataclass(frozen=True)
class BuildJob:
    """One engine to be made: ``graph`` is the network of ``checkpoint`` as fused operators, made by ``fusions``.

    ``kv_cache_dtype`` is the type that the KV cache should have, or ``auto``. ``targets`` are names that the backend
    accepts. Without weights in the engine (``strip_plan``) the runtime makes random ones.
    """

    checkpoint: Checkpoint
    graph: ir.Graph
    fusions: tuple[Fusion, ...]
    limits: BuildLimits
    kv_cache_dtype: str
    targets: tuple[str, ...]
    strip_plan: bool
    tuning: Tuning
    report: Progress


class Backend(Protocol):
    """A kind of target. ``kind`` is its name in the manifest, by which the C++ runtime finds its executor."""

    kind: str

    def accepts(self, target: str) -> bool:
        """Whether ``target`` is a name of this kind, supported or not."""

    def check(self, targets: Sequence[str], strip_plan: bool, tuning: Tuning) -> None:
        """Raise BuildError or OutputError for targets and options that can never be built, before any work is done."""

    def compile(self, job: BuildJob) -> EngineParts:
        """Make everything that goes into the engine file. Raises BuildError."""

    def memory(self, job: BuildJob, num_threads: int | None) -> MemoryPlan:
        """The memory that a running engine would need; nothing is compiled. Raises BuildError, ArgumentError."""


def all_backends() -> tuple[Backend, ...]:
    """Every backend, in the order in which targets are offered to them."""
    from trtllm_lite.builder.cpu.backend import CpuBackend
    from trtllm_lite.builder.cuda.backend import CudaBackend

    return (CpuBackend(), CudaBackend())


def backend_of(targets: Sequence[str]) -> tuple[Backend, tuple[str, ...]]:
    """The one backend of all ``targets`` (each may be several names, separated by commas), and the names.

    Raises BuildError if they belong to several.
    """
    if not isinstance(targets, Sequence) or not targets or not all(isinstance(target, str) for target in targets):
        raise BuildError(f"the target is {shown(targets)}: expected cpu or GPU architectures such as sm_90")
    names = tuple(name.strip() for target in targets for name in target.split(","))
    found = {backend.kind: backend for name in names for backend in [_backend_of_one(name)]}
    if len(found) > 1:
        raise BuildError(
            f"the targets are {', '.join(names)}: an engine is for one kind of device ({' or '.join(found)}); build two"
        )
    return next(iter(found.values())), names


def _backend_of_one(target: str) -> Backend:
    """The backend of one target; the last backend takes targets that no other accepts, and says what is wrong."""
    *others, last = all_backends()
    return next((backend for backend in others if backend.accepts(target)), last)
