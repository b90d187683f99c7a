"""The backend ``tensorrt``: an engine of NVIDIA's compiler, for RTX GPUs, from the same checkpoint."""

from collections.abc import Sequence

import onnx_ir as ir

from trtllm_lite.builder.backends import TENSORRT
from trtllm_lite.builder.cache_dtype import AUTO_DTYPE
from trtllm_lite.builder.graph import dims, nodes_of, weight_tensor
from trtllm_lite.builder.job import BuildJob, Fused, Tuning
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.builder.memory import MemoryPlan
from trtllm_lite.builder.modules import module_of
from trtllm_lite.builder.parts import EngineParts
from trtllm_lite.builder.pipeline import run_passes
from trtllm_lite.builder.tensorrt.compile import compile_network
from trtllm_lite.builder.tensorrt.library import find_library
from trtllm_lite.builder.tensorrt.passes import pipeline
from trtllm_lite.builder.tensorrt.passes.products import NAME as PRODUCTS
from trtllm_lite.builder.tensorrt.request import profiles_of
from trtllm_lite.common.vocabulary import (
    ALIGNMENT,
    ATTENTION,
    BY_TENSORRT,
    DECODER,
    FLOAT32,
    LOGITS,
    cache_names,
    num_bytes,
)
from trtllm_lite.engine.cache_use import cache_use
from trtllm_lite.engine.manifest import Cache, CacheGroup, Fusion, KvCache, Tactic, Target
from trtllm_lite.engine.plan import NetworkInstruction, Plan, PlanTensor, Program
from trtllm_lite.errors import BuildError, shown
from trtllm_lite.network.config import ModelConfig
from trtllm_lite.network.sinks import without_sink
from trtllm_lite.quantize.kv_cache import find_attentions

_KEY = "tensorrt"  # key of the only network in an engine


class TensorRtBackend:
    """The targets that TensorRT for RTX compiles for, such as ``sm_89`` and ``sm_120``."""

    kind = TENSORRT
    defaults = BY_TENSORRT

    def accepts(self, target: str) -> bool:
        """Implements :meth:`Backend.accepts`."""
        return target.startswith("sm_")

    def check(self, targets: Sequence[str], strip_plan: bool, tuning: Tuning) -> None:
        """Implements :meth:`Backend.check`."""
        if strip_plan:
            raise BuildError(
                "strip_plan is given for the backend tensorrt, whose engines hold their weights: leave strip_plan out"
            )
        if tuning != Tuning():
            raise BuildError(
                "a timing cache or fast_build is given for the backend tensorrt, which times nothing: leave both out"
            )
        find_library().check_archs(targets)

    def fuse(self, network: ir.Model, config: ModelConfig, kv_cache_dtype: str, limits: BuildLimits) -> Fused:
        """Implements :meth:`Backend.fuse`: types and shapes that TensorRT has kernels for; it fuses by itself."""
        dtype = config.dtype
        if dtype == FLOAT32:
            raise BuildError(
                f"the checkpoint is {dtype}, and TensorRT computes in 16-bit types: convert with --dtype bfloat16"
            )
        _check_attention(network.graph)
        _check_layers(network.graph, config)
        _check_cache(network.graph, dtype, kv_cache_dtype)
        if limits.tokens_per_block != BuildLimits.tokens_per_block:
            raise BuildError(
                f"tokens_per_block is {limits.tokens_per_block}: TensorRT keeps each sequence in one piece, "
                "so leave tokens_per_block out"
            )
        model, fusions = run_passes(network, pipeline(dtype, limits))
        caches = tuple(
            Cache(layer, f"{what}_cache", dtype, (config.num_key_value_heads, config.head_dim))
            for layer in range(len(nodes_of(model.graph, "TensorScatter")) // 2)
            for what in ("key", "value")
        )
        return Fused(model.graph, tuple(fusions), (CacheGroup("full", "full", 0, caches),), dtype)

    def compile(self, ranks: Sequence[BuildJob]) -> list[EngineParts]:
        """Implements :meth:`Backend.compile`; there is one rank."""
        return list(map(self._compile, ranks))

    def _compile(self, job: BuildJob) -> EngineParts:
        library = find_library()
        compiled = compile_network(job, library)
        cache = _cache_of(job)
        plan = _plan_of(job, cache, library.package)
        return EngineParts(
            target=Target(TENSORRT, tuple(job.targets)),
            plan=plan.to_json(),
            weights=(),
            module=module_of(DECODER, plan.tensors, plan.inputs, plan.outputs, cache.groups),
            kv_cache=cache,
            memory=_memory(job, cache, compiled.activation_bytes),
            cubins={},
            alignment=ALIGNMENT,
            tactics=(*_version(library.package, library.version), *compiled.layers),
            expansions=_expansions(job),
            networks={_KEY: compiled.image},
        )

    def memory(self, job: BuildJob, num_threads: int | None) -> MemoryPlan:
        """Implements :meth:`Backend.memory`; raises BuildError, as only TensorRT's compiler knows its workspace."""
        del num_threads
        weights, cache = _weight_bytes(job.graph), _cache_of(job)
        raise BuildError(
            f"a memory plan needs the workspace, which the backend tensorrt knows only after a build: weights take "
            f"{weights:,} bytes and the KV cache {cache.num_blocks * cache.bytes_per_block:,}; run `trtllm-lite build`"
        )


def _check_attention(graph: ir.Graph) -> None:
    """Raise BuildError for attention with sinks."""
    for node in nodes_of(graph, "Attention"):
        if without_sink(node.inputs[1]) is not node.inputs[1]:
            raise BuildError(f"{node.name} has attention sinks, which TensorRT lacks: build without --backend tensorrt")


def _check_layers(graph: ir.Graph, config: ModelConfig) -> None:
    """Raise BuildError for a layer with other key/value heads than config.json says of all layers."""
    expected = (config.num_key_value_heads, config.head_dim)
    for node in nodes_of(graph, "TensorScatter"):
        _, heads, _, head_dim = dims(node.inputs[0]) or (None,) * 4
        if (heads, head_dim) != expected:
            raise BuildError(
                f"{node.name} keeps {heads} heads of {head_dim} elements, and engines of TensorRT keep the "
                f"{expected[0]} of {expected[1]} of config.json in every layer: build without --backend tensorrt"
            )


def _check_cache(graph: ir.Graph, dtype: str, wanted: str) -> None:
    """Raise BuildError for a KV cache of another type than ``dtype``."""
    rounds = any(rounding for attention in find_attentions(graph) for rounding in attention.roundings)
    if rounds or wanted not in (AUTO_DTYPE, dtype):
        found = "rounded to eight bits by the network" if rounds else shown(wanted)
        raise BuildError(
            f"the KV cache is {found}, and TensorRT keeps keys and values in 16 bits: build with --kv_cache_dtype "
            f"{dtype}"
        )


def _cache_of(job: BuildJob) -> KvCache:
    """One block for each sequence, with all of its keys and values."""
    length = job.limits.max_seq_len
    (group,) = job.limits.cache_groups
    return KvCache(
        tokens_per_block=length,
        num_blocks=job.limits.max_batch_size,
        bytes_per_block=length * group.num_bytes,
        groups=(group,),
    )


def _plan_of(job: BuildJob, cache: KvCache, library: str) -> Plan:
    """Return the plan: caches, logits, and a call of the network with an optimization profile for each kind of step."""
    symbols = job.limits.symbols() | {"max_blocks_per_seq": 1, "num_blocks": cache.num_blocks}
    caches = tuple(
        PlanTensor(names.plan, cache.dtype, ("num_blocks", *cache.row_shape), "row_major", "cache", 0)
        for names in cache_names(enumerate([ATTENTION] * cache.num_layers))
    )
    vocab_size = job.checkpoint.config.vocab_size
    logits = PlanTensor(LOGITS, FLOAT32, ("num_logits", vocab_size), "row_major", "arena", 0)
    programs = tuple(
        Program(name, "any", name == "generation", most, (NetworkInstruction("network", library, _KEY, number),))
        for number, (name, most) in enumerate(
            zip(("context", "generation"), (p.batch[2] * p.seq[2] for p in profiles_of(job.limits)), strict=True)
        )
    )
    return Plan(
        symbols=symbols,
        arena_bytes=num_bytes(FLOAT32, (symbols["num_logits"], vocab_size)),
        state_bytes=0,
        tensors=(*caches, logits),
        outputs={LOGITS: len(caches)},
        kernels=(),
        programs=programs,
        cuda=None,
    )


def _memory(job: BuildJob, cache: KvCache, activation_bytes: int) -> MemoryPlan:
    logits = num_bytes(FLOAT32, (job.limits.num_logits, job.checkpoint.config.vocab_size))
    return MemoryPlan(
        weights=_weight_bytes(job.graph),
        kv_cache=cache.num_blocks * cache.bytes_per_block,
        arena=activation_bytes + logits,
        step_inputs=0,
        scratch=0,
        num_threads=0,
        cache_use=cache_use(cache, job.limits.max_seq_len),
    )


def _weight_bytes(graph: ir.Graph) -> int:
    tensors = (weight_tensor(value) for value in graph.initializers.values())
    return sum(tensor.nbytes for tensor in tensors if isinstance(tensor, ir.LazyTensor))


def _version(package: str, version: str) -> tuple[Tactic, ...]:
    return (Tactic("all", f"{package} {version}", "the compiler that was installed"),)


def _expansions(job: BuildJob) -> tuple[Tactic, ...]:
    """Entries for matrices that the engine stores in another form than the checkpoint."""

    def parts(fusion: Fusion) -> tuple[str, str]:
        choice, _, reason = fusion.reason.partition(": ")
        return choice, reason

    found = (fusion for fusion in job.fusions if fusion.pass_name == PRODUCTS and not fusion.fused)
    return tuple(Tactic(fusion.site, *parts(fusion)) for fusion in found)
