"""The parts of an engine file that a backend makes from a network."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from trtllm_lite.builder.job import BuildJob
from trtllm_lite.builder.memory import MemoryPlan
from trtllm_lite.builder.plugins_used import plugins_used
from trtllm_lite.common.vocabulary import DEFAULT_MAX_LORAS
from trtllm_lite.engine.format import PRODUCER
from trtllm_lite.engine.manifest import KvCache, Lora, Manifest, Tactic, Target
from trtllm_lite.engine.modules import Module
from trtllm_lite.engine.writer import EngineContent, Weight


@dataclass(frozen=True)
class EngineParts:
    """``plan`` is JSON, ``cubins`` maps keys to machine code; weights start at multiples of ``alignment`` bytes.

    ``networks`` maps keys to engines serialized by another library, weights included. ``expansions`` lists weights that
    are stored expanded because no kernel reads their format.
    """

    target: Target
    plan: str
    weights: tuple[Weight, ...]
    module: Module
    kv_cache: KvCache
    memory: MemoryPlan
    cubins: Mapping[str, bytes]
    alignment: int
    tactics: tuple[Tactic, ...] = ()
    expansions: tuple[Tactic, ...] = ()
    networks: Mapping[str, bytes | memoryview] = field(default_factory=dict)


def manifest_of(job: BuildJob, parts: EngineParts, files: Mapping[str, str]) -> Manifest:
    """Makes the manifest of the engine for ``job``; ``files`` maps files beside it to their checksums."""
    limits = job.limits
    return Manifest(
        producer=PRODUCER,
        target=parts.target,
        model=job.checkpoint.config,
        modules=(parts.module,),
        limits=limits.in_manifest(),
        kv_cache=parts.kv_cache,
        gather_context_logits=limits.gather_context_logits,
        files=dict(files),
        memory=parts.memory.to_manifest(),
        fusions=job.fusions,
        num_parameters=_num_parameters(job.checkpoint.model.graph),
        qformat=job.qformat,
        mapping=job.mapping,
        allreduce_strategy=limits.allreduce_strategy,
        stripped=job.strip_plan,
        tactics=parts.tactics,
        expansions=parts.expansions,
        accuracy=job.accuracy,
        deterministic=limits.deterministic,
        lora=_lora(job, parts) if limits.max_lora_rank else None,
        state_rounding=job.state_rounding,
        state_forms=job.state_forms,
        plugins=plugins_used(job.graph),
    )


def _lora(job: BuildJob, parts: EngineParts) -> Lora:
    return Lora(job.limits.max_lora_rank, job.lora_projections, parts.memory.adapters // DEFAULT_MAX_LORAS)


def _num_parameters(graph: ir.Graph) -> int:
    """Counts the elements of the weights, which are in files of their own; constants are in the network."""
    tensors = (value.const_value for value in graph.initializers.values())
    return sum(int(tensor.size) for tensor in tensors if isinstance(tensor, ir.LazyTensor))


def content_of(parts: EngineParts, manifest: Manifest) -> EngineContent:
    """Makes the contents of the engine file; a stripped engine has no weights."""
    return EngineContent(
        () if manifest.stripped else parts.weights,
        parts.plan,
        manifest.to_json(),
        cubins=parts.cubins,
        networks=parts.networks,
        alignment=parts.alignment,
    )
