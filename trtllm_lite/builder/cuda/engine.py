"""Makes the parts of a GPU engine from a fused network."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import onnx_ir as ir

from trtllm_lite._core import SIDE_TOKENS
from trtllm_lite.builder.cuda.compile import compile_kernels
from trtllm_lite.builder.cuda.expansion import expand_weights
from trtllm_lite.builder.cuda.planning import WORKSPACE_BYTES, Lowered, lower_network, make_plan
from trtllm_lite.builder.cuda.products.tactics import explain
from trtllm_lite.builder.cuda.products.timing_cache import Product, TimingCache
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.builder.memory import MemoryPlan, beside_parts, kv_cache_of, takes_long_texts
from trtllm_lite.builder.parts import EngineParts
from trtllm_lite.common.vocabulary import DEVICE_ALIGNMENT
from trtllm_lite.engine.cache_use import cache_use
from trtllm_lite.engine.format import align
from trtllm_lite.engine.manifest import Target
from trtllm_lite.engine.writer import Weight
from trtllm_lite.errors import BuildError
from trtllm_lite.plugins.launch import Device, Matmul


def cuda_parts(
    ranks: Sequence[ir.Graph],
    kind: str,
    dtype: str,
    limits: BuildLimits,
    devices: Sequence[Device],
    progress: Callable[[int, int], None],
    timings: TimingCache | None = None,
    *,
    must_know: bool = True,
) -> list[EngineParts]:
    """Lower, compile and plan the first of ``ranks``; all ranks share its plan, and each has its own weights.

    ``kind`` is that of the network's module. ``progress`` counts compiled kernels. Raises BuildError; with
    ``must_know`` also if ``timings`` has none of this network's products.
    """
    graph, *others = ranks
    if timings is not None and timings.arch not in {device.arch for device in devices}:
        raise BuildError(
            f"the timing cache was measured on {timings.device} ({timings.arch}), and the targets are "
            f"{', '.join(device.arch for device in devices)}: pass a cache measured on one of them, or none"
        )
    lowered = lower_network(graph, kind, dtype, limits, devices, timings)
    if timings is not None and must_know:
        _check_known(lowered, timings)
    first = parts_of(lowered, progress, timings)
    return [first, *(replace(first, weights=weights_of(other, lowered)) for other in others)]


def weights_of(graph: ir.Graph, lowered: Lowered) -> tuple[Weight, ...]:
    """Return the weights of ``graph``, which belongs to another rank than the lowered one."""
    expand_weights(graph, lowered.operands.dtype)
    return lowered.operands.weights_of(graph)


def _check_known(lowered: Lowered, timings: TimingCache) -> None:
    """Raise BuildError if a timing cache has no timing of the network's products."""
    programs = [program for program in lowered.programs if program.device.arch == timings.arch]
    products = dict.fromkeys(
        Product.of(command) for program in programs for command in program.commands if isinstance(command, Matmul)
    )
    is_tiled = any(kernel.name.endswith("_tiled") for kernel, arch in lowered.kernels() if arch == timings.arch)
    if is_tiled or not products or any(timings.timings(product) for product in products):
        return
    raise BuildError(
        f"the timing cache, measured on {timings.device}, knows none of this network's products (such as "
        f"{next(iter(products))}): the cache is of other models, so leave it out, or measure this model with "
        "--output_timing_cache"
    )


def parts_of(lowered: Lowered, progress: Callable[[int, int], None], timings: TimingCache | None = None) -> EngineParts:
    """Compile what was lowered, and write its plan. Raises BuildError."""
    cubins = compile_kernels(lowered.kernels(), progress)
    plan = make_plan(lowered, {specialised: cubin.key for specialised, cubin in cubins.items()}, timings)
    return EngineParts(
        target=Target("cuda", lowered.archs),
        plan=plan.to_json(),
        weights=tuple(lowered.operands.weights.values()),
        module=lowered.module,
        kv_cache=kv_cache_of(lowered.module, lowered.operands.limits),
        memory=_memory(lowered),
        cubins={cubin.key: cubin.image for cubin in cubins.values()},
        alignment=DEVICE_ALIGNMENT,
        tactics=explain(lowered, timings),
        expansions=lowered.expansions,
    )


def cuda_memory(graph: ir.Graph, kind: str, dtype: str, limits: BuildLimits, devices: Sequence[Device]) -> MemoryPlan:
    """Return the device memory that the engine will take; nothing is compiled."""
    return _memory(lower_network(graph, kind, dtype, limits, devices))


def _beside_bytes(lowered: Lowered) -> int:
    """The memory of an encoder's side stream: see csrc/cuda/step/side_stream.h."""
    if not takes_long_texts(lowered.module, lowered.operands.limits, SIDE_TOKENS) or lowered.layout.state_bytes:
        return 0
    arena, inputs = beside_parts(lowered.layout.tensors, lowered.operands.symbols, SIDE_TOKENS, DEVICE_ALIGNMENT)
    return sum(arena) + inputs + WORKSPACE_BYTES


def _memory(lowered: Lowered) -> MemoryPlan:
    """Return the memory of the plan; the runtime keeps spare blocks for the padding of captured steps."""
    tensors, symbols = lowered.layout.tensors, lowered.operands.symbols
    kv_cache = kv_cache_of(lowered.module, lowered.operands.limits)
    padded = {tensor: align(tensor.max_bytes(symbols), DEVICE_ALIGNMENT) for tensor in tensors}
    return MemoryPlan(
        weights=max(tensor.offset + padded[tensor] for tensor in tensors if tensor.kind == "weight"),
        kv_cache=(kv_cache.num_blocks + kv_cache.spare_blocks) * kv_cache.bytes_per_block,
        arena=lowered.layout.arena_bytes,
        step_inputs=sum(padded[tensor] for tensor in tensors if tensor.kind == "input"),
        beside=_beside_bytes(lowered),
        scratch=WORKSPACE_BYTES + lowered.layout.state_bytes,
        num_threads=0,
        cache_use=cache_use(kv_cache, lowered.operands.limits.max_seq_len),
        adapters=symbols.get("num_loras", 0) * lowered.layout.slot_bytes,
    )
