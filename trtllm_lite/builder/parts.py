"""What a target makes of a network: everything that goes into the engine file."""

from collections.abc import Mapping
from dataclasses import dataclass

from trtllm_lite.builder.memory import MemoryPlan
from trtllm_lite.engine.manifest import KvCache, Tactic, Target
from trtllm_lite.engine.writer import Weight


@dataclass(frozen=True)
class EngineParts:
    """``plan`` is JSON, ``cubins`` maps keys to machine code; weights start at multiples of ``alignment`` bytes."""

    target: Target
    plan: str
    weights: tuple[Weight, ...]
    kv_cache: KvCache
    memory: MemoryPlan
    cubins: Mapping[str, bytes]
    alignment: int
    tactics: tuple[Tactic, ...] = ()
