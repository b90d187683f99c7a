"""The ranks of an engine: what each is built of, whether there can be several, and what they read of each other."""

from dataclasses import replace

import onnx_ir as ir

from trtllm_lite.builder.cpu.planning import CPU
from trtllm_lite.builder.graph import dims, operands
from trtllm_lite.builder.job import BuildJob, Tuning
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.builder.passes.features import has_features
from trtllm_lite.builder.sharding import shard
from trtllm_lite.engine.manifest import RankMapping
from trtllm_lite.errors import BuildError
from trtllm_lite.plugins.schema import all_schemas
from trtllm_lite.vocabulary import FLOAT32, num_bytes


def check_shardable(graph: ir.Graph, limits: BuildLimits, backend: str) -> None:
    """Raise BuildError if engines of ``graph`` are for one device alone."""
    if limits.tp_size == 1:
        return
    problems = {
        "engines of the backend tensorrt are for one GPU": backend == "tensorrt",
        "adapters (--max_lora_rank) are for engines of one device": limits.max_lora_rank > 0,
        "heads that draft from features (EAGLE-3), and models that keep some for them, are for one device": (
            has_features(graph)
        ),
    }
    for problem, found in problems.items():
        if found:
            raise BuildError(f"tp_size is {limits.tp_size}: {problem}; leave one of the two out")


def ranks_of(job: BuildJob) -> list[BuildJob]:
    """``job`` for each rank, to be compiled in order. Raises BuildError if so many cannot share the network out."""
    tp_size = job.limits.tp_size
    if tp_size == 1:
        return [job]
    # What the first rank measures holds for the others, whose products have the same shapes.
    measured = job.tuning.output_timing_cache
    known = job.tuning if measured is None else Tuning(input_timing_cache=measured)
    return [
        replace(job, graph=graph, mapping=RankMapping(tp_size, rank), tuning=known if rank else job.tuning)
        for rank, graph in enumerate(shard(job.graph, tp_size))
    ]


def link_bytes(job: BuildJob) -> dict[str, int]:
    """Bytes that a rank reads of the others' memory for a token that is generated, by collective."""
    on_gpu = any(target != CPU for target in job.targets)
    found: dict[str, int] = {}
    for node in job.graph:
        schema = all_schemas()[node.op_type]
        if schema.collective:
            features = (dims(operands(node)["x"]) or ())[-1]
            assert isinstance(features, int)
            dtype = job.checkpoint.config.dtype if on_gpu and node.op_type == "AllReduce" else FLOAT32
            read = num_bytes(dtype, (features,)) * (job.limits.tp_size - 1)
            found[schema.folder] = found.get(schema.folder, 0) + read
    return found
