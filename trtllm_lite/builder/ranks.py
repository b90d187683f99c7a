"""Divides an engine among ranks: whether this is possible, each rank's graph, and what ranks read of each other."""

from dataclasses import replace

import onnx_ir as ir

from trtllm_lite.builder.cache_groups import groups_of_rank
from trtllm_lite.builder.graph import attribute, features_of, operands
from trtllm_lite.builder.job import BuildJob
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.builder.passes.features import has_features, reads_features
from trtllm_lite.builder.sharding import shard
from trtllm_lite.builder.stages import received, split
from trtllm_lite.common.vocabulary import CPU, FLOAT32, num_bytes
from trtllm_lite.engine.manifest import RankMapping
from trtllm_lite.errors import BuildError
from trtllm_lite.plugins.schema import all_schemas


def check_divisible(graph: ir.Graph, limits: BuildLimits, backend: str) -> None:
    """Raise BuildError if engines of ``graph`` can only run on one device."""
    sizes = {"tp_size": limits.tp_size, "pp_size": limits.pp_size}
    given = [f"{name} is {size}" for name, size in sizes.items() if size > 1]
    if not given:
        return
    problems = {
        "engines of the backend tensorrt are for one GPU": backend == "tensorrt",
        "adapters (max_lora_rank) are for engines of one device": limits.max_lora_rank > 0,
        "a head or a layer that drafts (EAGLE-3, MTP) is for one device": reads_features(graph),
        "models that keep features for such a head are for one GPU, or for ranks on a CPU without stages": (
            has_features(graph) and (backend != CPU or limits.pp_size > 1)
        ),
    }
    for problem, found in problems.items():
        if found:
            raise BuildError(f"{' and '.join(given)}: {problem}; leave one of the two out")


def check_experts(fused: ir.Graph, moe_ep_size: int) -> None:
    """Raise BuildError if the ``fused`` network has no experts to divide among ``moe_ep_size`` EP ranks."""
    counts = {attribute(node, "local_experts") for node in fused if node.op_type == "Router"}
    if moe_ep_size > 1 and not counts:
        raise BuildError(f"moe_ep_size is {moe_ep_size}, and the model has no mixtures of experts: leave it out")
    for count in sorted(counts):
        if count % moe_ep_size:
            raise BuildError(
                f"moe_ep_size is {moe_ep_size}, which does not divide the {count} experts of a layer: pass a divisor "
                f"of {count}; with a larger --tp_size ranks also split the features of each expert"
            )


def check_strategy(limits: BuildLimits, backend: str) -> None:
    """Raise BuildError if NCCL is asked for but there is one rank, or ranks of a backend that does not use it."""
    if not limits.uses_nccl:
        return
    problems = {
        "NCCL is for GPUs with the native backend (--target sm_90)": backend != "cuda",
        "one rank has no others to exchange data with: pass --tp_size": limits.tp_size == 1,
        "stages on one machine reach each other's memory: leave --pp_size out": limits.pp_size > 1,
        "NCCL promises no order of additions: leave --deterministic out": limits.deterministic,
    }
    for problem, found in problems.items():
        if found:
            raise BuildError(f"allreduce_strategy is NCCL: {problem}, or leave allreduce_strategy out")


def ranks_of(job: BuildJob) -> list[list[BuildJob]]:
    """``job`` for each rank of each stage, in the order in which stages are to be compiled.

    Raises BuildError if the network cannot be divided.
    """
    stages = [_parts_of(stage) for stage in stages_of(job)]
    groups = tuple(first.limits.cache_groups for first, *_ in stages)
    return [[replace(rank, limits=replace(rank.limits, groups_of_stages=groups)) for rank in ranks] for ranks in stages]


def stages_of(job: BuildJob) -> list[BuildJob]:
    """``job`` for each stage of the pipeline, for the stage's first rank. Raises BuildError as :func:`split` does."""
    limits = job.limits
    if limits.pp_size == 1:
        return [replace(job, mapping=RankMapping(limits.tp_size, moe_ep_size=limits.moe_ep_size))]
    # Each stage measures its own products, and reuses the measurements of earlier stages.
    measured = job.tuning.output_timing_cache
    further = job.tuning if measured is None else replace(job.tuning, input_timing_cache=measured)
    return [
        replace(
            job,
            graph=stage.graph,
            limits=replace(limits, cache_groups=stage.cache_groups),
            mapping=RankMapping(limits.tp_size, number * limits.tp_size, limits.pp_size, limits.moe_ep_size),
            tuning=further if number else job.tuning,
        )
        for number, stage in enumerate(split(job.graph, limits.cache_groups, limits.pp_size))
    ]


def _parts_of(stage: BuildJob) -> list[BuildJob]:
    """Return the ranks among which the layers of ``stage`` are divided."""
    if stage.mapping.tp_size == 1:
        return [stage]
    return [
        replace(
            stage,
            graph=graph,
            limits=replace(stage.limits, cache_groups=groups_of_rank(stage.limits.cache_groups, graph)),
            mapping=replace(stage.mapping, rank=stage.mapping.rank + part),
        )
        for part, graph in enumerate(shard(stage.graph, stage.mapping.tp_size, stage.mapping.moe_ep_size))
    ]


def link_bytes(job: BuildJob) -> dict[str, int]:
    """Return the bytes that a rank receives from the others, or reads in their memory, per generated token.

    Keys are collectives, and ``received`` for bytes from the previous stage. NCCL's AllReduce is counted as a ring of n
    ranks, in which a rank receives 2 (n - 1) / n of a row.
    """
    on_gpu = any(target != CPU for target in job.targets)
    activations = job.checkpoint.config.dtype if on_gpu else FLOAT32
    rows = [features_of(value) for value in received(job.graph)]
    found = {"received": sum(num_bytes(activations, (features,)) for features in rows)} if rows else {}
    for node in job.graph:
        schema = all_schemas()[node.op_type]
        if schema.collective:
            dtype = activations if node.op_type == "AllReduce" else FLOAT32
            read = num_bytes(dtype, (features_of(operands(node)["x"]),)) * (job.limits.tp_size - 1)
            if job.limits.uses_nccl and node.op_type == "AllReduce":
                read = 2 * read // job.limits.tp_size
            found[schema.folder] = found.get(schema.folder, 0) + read
    return found
