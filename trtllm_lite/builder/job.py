"""Describes one build."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from trtllm_lite.builder.checkpoint import Checkpoint
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.engine.manifest import ONE_RANK, Accuracy, CacheGroup, Fusion, RankMapping, StateForms, StateRounding
from trtllm_lite.network.module_rows import ModuleRows

# Called with (name of the work, done, total). The names are "fuse" (passes and planning), "compile" (GPU kernels),
# "measure" (products) and "write" (weights).
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Tuning:
    """Measurements, old or to be made, that choose among kernels; see ``build_engine``."""

    input_timing_cache: Path | None = None
    output_timing_cache: Path | None = None
    fast_build: bool = False


@dataclass(frozen=True)
class Fused:
    """A network fused by its backend: ``graph``, the fusion decisions, and the type of its caches.

    ``kv_cache_dtype`` is the type that the KV cache has in the graph, or the one that was asked for (perhaps ``auto``).
    ``lora_projections`` maps numbers in LowRank to the projections that adapters may change. ``tokens_per_row`` counts
    the patches of each row that a vision tower makes; 0 in other networks.
    """

    graph: ir.Graph
    fusions: tuple[Fusion, ...]
    cache_groups: tuple[CacheGroup, ...]
    kv_cache_dtype: str
    lora_projections: tuple[ModuleRows, ...] = ()
    tokens_per_row: int = 0


@dataclass(frozen=True)
class BuildJob:
    """One engine to be made: ``graph`` is the network of ``checkpoint``, fused by its backend (:class:`Fused`).

    ``qformat`` is the format of linear layers' weights in the graph; ``kv_cache_dtype`` is the type that the KV cache
    has in the graph or should have, or ``auto``; ``key_cache_dtype`` is the type that keys should have beside values in
    8 bits, or ``auto``. ``targets`` are names that the backend accepts. Without weights in the
    engine (``strip_plan``) the runtime makes random ones. ``accuracy`` holds accuracy measurements made before the
    build, ``state_rounding`` and ``state_forms`` what was measured of recurrent layers. ``mapping`` says which ranks'
    part of the network the graph is.
    """

    checkpoint: Checkpoint
    graph: ir.Graph
    fusions: tuple[Fusion, ...]
    limits: BuildLimits
    qformat: str
    kv_cache_dtype: str
    targets: tuple[str, ...]
    strip_plan: bool
    tuning: Tuning
    report: Progress
    key_cache_dtype: str = "auto"
    accuracy: Accuracy | None = None
    mapping: RankMapping = ONE_RANK
    lora_projections: tuple[ModuleRows, ...] = ()
    state_rounding: StateRounding | None = None
    state_forms: tuple[StateForms, ...] = ()
