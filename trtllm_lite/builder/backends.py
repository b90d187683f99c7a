"""Finds the backend that turns a fused network into an engine for the given targets."""

from collections.abc import Sequence
from typing import Protocol

import onnx_ir as ir

from trtllm_lite.builder.job import BuildJob, Fused, Tuning
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.builder.memory import MemoryPlan
from trtllm_lite.builder.parts import EngineParts
from trtllm_lite.common.vocabulary import DefaultLimits
from trtllm_lite.errors import BuildError, shown
from trtllm_lite.network.config import ModelConfig

NATIVE, TENSORRT = "native", "tensorrt"  # this project's own kernels, or NVIDIA's compiler


class Backend(Protocol):
    """Builds engines for one kind of device. ``kind`` names it in the manifest; the runtime picks an executor by it."""

    kind: str
    defaults: DefaultLimits

    def accepts(self, target: str) -> bool:
        """Return whether ``target`` is a name of this kind, supported or not."""

    def check(self, targets: Sequence[str], strip_plan: bool, tuning: Tuning) -> None:
        """Raise BuildError or OutputError for targets and options that can never be built, before any work is done."""

    def fuse(self, network: ir.Model, config: ModelConfig, kv_cache_dtype: str, limits: BuildLimits) -> Fused:
        """Return the quantized standard ``network`` fused for this kind of device. Raises BuildError."""

    def compile(self, ranks: Sequence[BuildJob]) -> list[EngineParts]:
        """Make everything that goes into the engine files of the ``ranks`` of one pipeline stage, which share a plan.

        Raises BuildError.
        """

    def memory(self, job: BuildJob, num_threads: int | None) -> MemoryPlan:
        """The memory that a running engine would need; nothing is compiled. Raises BuildError, ArgumentError."""


def all_backends() -> dict[str, tuple[Backend, ...]]:
    """Every backend by the value of ``--backend`` that selects it, in the order in which targets are tried."""
    from trtllm_lite.builder.cpu.backend import CpuBackend
    from trtllm_lite.builder.cuda.backend import CudaBackend
    from trtllm_lite.builder.tensorrt.backend import TensorRtBackend

    return {NATIVE: (CpuBackend(), CudaBackend()), TENSORRT: (TensorRtBackend(),)}


def backend_of(targets: Sequence[str], option: str = NATIVE) -> tuple[Backend, tuple[str, ...]]:
    """Return the one backend of all ``targets`` (each may be several names, separated by commas), and the names.

    ``option`` is one of :func:`all_backends`. Raises BuildError if the option names no backend, or the targets belong
    to several.
    """
    offered = all_backends().get(option) if isinstance(option, str) else None
    if offered is None:
        raise BuildError(f"the backend is {shown(option)}: expected {' or '.join(all_backends())}")
    if not isinstance(targets, Sequence) or not targets or not all(isinstance(target, str) for target in targets):
        raise BuildError(f"the target is {shown(targets)}: expected cpu or GPU architectures such as sm_90")
    names = tuple(name.strip() for target in targets for name in target.split(","))
    found = {backend.kind: backend for name in names for backend in [_backend_of_one(name, offered)]}
    if len(found) > 1:
        raise BuildError(
            f"the targets are {', '.join(names)}: an engine is for one kind of device ({' or '.join(found)}); build an "
            "engine for each"
        )
    return next(iter(found.values())), names


def _backend_of_one(target: str, offered: Sequence[Backend]) -> Backend:
    """The backend of one target; the last backend takes any target that no other accepts, and says what is wrong."""
    *others, last = offered
    return next((backend for backend in others if backend.accepts(target)), last)
