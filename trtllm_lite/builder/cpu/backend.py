"""Engines for CPUs: calls of native kernels, on weights that the runtime maps."""

from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir

from trtllm_lite import _core
from trtllm_lite.builder.cache_dtype import AUTO_DTYPE, plain_dtype
from trtllm_lite.builder.cache_groups import as_stored
from trtllm_lite.builder.cpu.planning import make_plan
from trtllm_lite.builder.job import BuildJob, Fused, Tuning
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.builder.memory import MemoryPlan, kv_cache_of, plan_bytes
from trtllm_lite.builder.parts import EngineParts
from trtllm_lite.builder.pipeline import fuse_into_plugins
from trtllm_lite.builder.plugins_used import plugins_used
from trtllm_lite.common.vocabulary import ALIGNMENT, CPU, FLOAT32, KV_CACHE_DTYPES, ON_CPU, PLAIN_DTYPES
from trtllm_lite.engine.manifest import Target
from trtllm_lite.errors import BuildError, shown
from trtllm_lite.network.config import ModelConfig
from trtllm_lite.plugins.packages import load_kernels


class CpuBackend:
    """The target ``cpu``."""

    kind = CPU
    defaults = ON_CPU

    def accepts(self, target: str) -> bool:
        """Implements :meth:`Backend.accepts`."""
        return target == CPU

    def check(self, targets: Sequence[str], strip_plan: bool, tuning: Tuning) -> None:
        """Implements :meth:`Backend.check`."""
        del targets
        if strip_plan:
            raise BuildError(
                "strip_plan is given for the cpu target: CPU engines map their weights, so pass a GPU target"
            )
        if tuning != Tuning():
            raise BuildError(
                "a timing cache or fast_build is given for the cpu target: CPU engines need no timing; leave both out"
            )

    def fuse(self, network: ir.Model, config: ModelConfig, kv_cache_dtype: str, limits: BuildLimits) -> Fused:
        """Implements :meth:`Backend.fuse`."""
        del config
        fused = fuse_into_plugins(network, kv_cache_dtype, limits)
        for plugin in plugins_used(fused.graph):
            lacking = sorted(set(plugin.operators) - load_kernels(plugin.package))
            if lacking:
                raise BuildError(
                    f"the package {plugin.package} has no kernel for CPUs of {', '.join(lacking)}: build for a GPU, or "
                    "add cpu.cc to the operator's folder (docs/contributing/out-of-tree.md)"
                )
        return fused

    def compile(self, ranks: Sequence[BuildJob]) -> list[EngineParts]:
        """Implements :meth:`Backend.compile`."""
        return list(map(self._compile, ranks))

    def _compile(self, job: BuildJob) -> EngineParts:
        job = _as_stored(job)
        planned = make_plan(job.graph, job.checkpoint.kind.name, job.limits)
        return EngineParts(
            target=Target(CPU),
            plan=planned.plan.to_json(),
            weights=planned.weights,
            module=planned.module,
            kv_cache=kv_cache_of(planned.module, job.limits),
            memory=plan_bytes(planned, job.limits, 1),
            cubins={},
            alignment=ALIGNMENT,
        )

    def memory(self, job: BuildJob, num_threads: int | None) -> MemoryPlan:
        """Implements :meth:`Backend.memory`."""
        # Affinity and control groups decide how many threads ``None`` stands for; only the runtime knows them.
        threads = _core.resolve_num_threads(num_threads or 0)
        job = _as_stored(job)
        planned = make_plan(job.graph, job.checkpoint.kind.name, job.limits)
        return plan_bytes(planned, job.limits, threads)


def _as_stored(job: BuildJob) -> BuildJob:
    """Return ``job`` with cache groups of the types of the KV cache, and the blocks that states take.

    Raises BuildError if the kernels have no cache of a type.
    """
    limits, dtype = job.limits, job.kv_cache_dtype
    if dtype not in (AUTO_DTYPE, *PLAIN_DTYPES, *KV_CACHE_DTYPES.values()):
        raise BuildError(
            f"kv_cache_dtype is {shown(dtype)}: expected one of {', '.join((AUTO_DTYPE, *PLAIN_DTYPES))}, fp8 and int8"
        )
    plain = plain_dtype(job.key_cache_dtype, dtype)

    def stored(in_graph: str) -> str:
        return plain if in_graph == FLOAT32 else in_graph

    groups = as_stored(limits.cache_groups, limits.tokens_per_block, stored, limits.groups_of_stages)
    return replace(job, limits=replace(limits, cache_groups=groups))
