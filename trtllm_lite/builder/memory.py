"""Predicts the exact bytes that an engine will need, from the plan alone; no weight is read."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from trtllm_lite._core import BESIDE_TOKENS, SCRATCH_BYTES_PER_THREAD, SHARED_SCRATCH_BYTES
from trtllm_lite.builder.cache_groups import block_layout
from trtllm_lite.builder.cpu.planning import Planned
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.engine.cache_use import CacheUse, cache_use
from trtllm_lite.engine.format import align
from trtllm_lite.engine.manifest import KvCache, Memory
from trtllm_lite.engine.modules import Module
from trtllm_lite.engine.plan import Plan, PlanTensor

_PAGE_BYTES = 4096


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes by kind.

    ``weights`` as stored in the engine; ``kv_cache`` for a full batch of full sequences; ``arena`` for intermediate
    values; ``step_inputs`` for token ids, block tables and other inputs; ``beside`` for steps of short texts that an
    encoder runs beside a long one; ``scratch`` for the ``num_threads`` threads of a CPU engine, or, on a GPU
    (``num_threads`` 0), for matrix products and state; ``adapters`` for DEFAULT_MAX_LORAS adapters on a GPU.
    ``cache_use`` describes the share of one sequence in the KV cache. If a model has several ranks, these are the bytes
    of each rank. ``link_bytes`` maps each collective to the maximum number of bytes that a rank reads from the others
    per generated token, and ``received`` to those from the previous stage. In a pipeline the figures are those of the
    stage that takes the most memory; ``stage_bytes`` has the total bytes of a rank of each stage.
    """

    weights: int
    kv_cache: int
    arena: int
    step_inputs: int
    scratch: int
    num_threads: int
    cache_use: CacheUse
    adapters: int = 0
    beside: int = 0
    link_bytes: Mapping[str, int] = field(default_factory=dict)
    stage_bytes: tuple[int, ...] = ()

    @property
    def workspace(self) -> int:
        """Everything but weights, adapters and KV cache."""
        return self.arena + self.step_inputs + self.beside + self.scratch

    @property
    def total(self) -> int:
        """All bytes that a running engine holds."""
        return self.weights + self.kv_cache + self.adapters + self.workspace

    def to_dict(self) -> dict[str, Any]:
        """Return all figures, sums included, for JSON."""
        return {**asdict(self), "workspace": self.workspace, "total": self.total}

    def to_manifest(self) -> Memory:
        """Return the figures that do not depend on the machine; scratch of CPU threads does."""
        scratch = 0 if self.num_threads else self.scratch
        return Memory(self.weights, self.kv_cache, self.arena + self.step_inputs + self.beside + scratch)


def plan_bytes(planned: Planned, limits: BuildLimits, num_threads: int) -> MemoryPlan:
    """Return the memory of a CPU engine with ``num_threads`` threads."""
    plan, kv_cache = planned.plan, kv_cache_of(planned.module, limits)
    return MemoryPlan(
        weights=sum(weight.num_bytes for weight in planned.weights),
        kv_cache=kv_cache.num_blocks * kv_cache.bytes_per_block,
        arena=plan.arena_bytes,
        step_inputs=_input_bytes(plan.tensors, plan.symbols),
        beside=_beside_bytes(plan) if takes_long_texts(planned.module, limits, BESIDE_TOKENS) else 0,
        scratch=num_threads * SCRATCH_BYTES_PER_THREAD + SHARED_SCRATCH_BYTES,
        num_threads=num_threads,
        cache_use=cache_use(kv_cache, limits.max_seq_len),
    )


def _input_bytes(tensors: Sequence[PlanTensor], symbols: dict[str, int], alignment: int = 1) -> int:
    return sum(align(tensor.max_bytes(symbols), alignment) for tensor in tensors if tensor.kind == "input")


def takes_long_texts(module: Module, limits: BuildLimits, most: int) -> bool:
    """Whether ``module`` is an encoder, and takes texts of more than ``most`` tokens."""
    return not module.caches and limits.max_input_len > most


def beside_parts(
    tensors: Sequence[PlanTensor], symbols: dict[str, int], most: int, alignment: int
) -> tuple[list[int], int]:
    """The memory of steps of at most ``most`` tokens beside a paused one (csrc/executor/beside.h).

    Returns the bytes of the largest of the arena's tensors at each offset, and those of all inputs, each aligned.
    """
    small = {name: min(symbols[name], most) for name in ("num_tokens", "num_seqs")}
    symbols = {**symbols, **small, "num_seqs_plus_1": small["num_seqs"] + 1}
    largest: dict[int, int] = defaultdict(int)
    for tensor in tensors:
        if tensor.kind == "arena":
            largest[tensor.offset] = max(largest[tensor.offset], align(tensor.max_bytes(symbols), alignment))
    return [*largest.values()], _input_bytes(tensors, symbols, alignment)


def _beside_bytes(plan: Plan) -> int:
    """See csrc/cpu/beside.h."""
    arena, inputs = beside_parts(plan.tensors, plan.symbols, BESIDE_TOKENS, 1)
    pages = sum(align(num_bytes, _PAGE_BYTES) + _PAGE_BYTES for num_bytes in arena)
    return min(pages, plan.arena_bytes) + inputs


def kv_cache_of(module: Module, limits: BuildLimits) -> KvCache:
    """Geometry of the caches that ``module`` owns; it is empty for an encoder."""
    if not module.caches:
        return KvCache(limits.tokens_per_block, 0, 0, ())
    layers = block_layout(limits.cache_groups, limits.tokens_per_block).num_bytes
    return KvCache(
        tokens_per_block=limits.tokens_per_block,
        num_blocks=limits.num_blocks,
        bytes_per_block=layers + sum(port.block_bytes for port in module.kept),
        groups=limits.cache_groups,
    )
