"""Makes the executor for an engine's target, and finds how much memory is free for its KV cache."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trtllm_lite.common.files import library_directories
from trtllm_lite.common.host_memory import available_host_memory
from trtllm_lite.common.vocabulary import GPU_MEMORY_FRACTION
from trtllm_lite.engine.manifest import Manifest, Target
from trtllm_lite.errors import ArgumentError, DeviceError, LimitError
from trtllm_lite.runtime.session.limits import AdapterSlots, RunnerOptions


def device_options(target: Target, options: RunnerOptions) -> RunnerOptions:
    """``options`` with the defaults of a loaded engine: the KV cache leaves a tenth of the free memory to other uses.

    Raises ArgumentError if threads are given for a GPU.
    """
    check_num_threads(options.num_threads, on_gpu=target.kind != "cpu")
    if options.device_ids is not None and target.kind != "cuda":
        raise ArgumentError(
            "device_ids is given, but only engines built for CUDA GPUs (such as --target sm_90) take it: leave it out"
        )
    if options.kv_cache.free_gpu_memory_fraction is not None:
        return options
    return replace(options, kv_cache=replace(options.kv_cache, free_gpu_memory_fraction=GPU_MEMORY_FRACTION))


def check_num_threads(num_threads: int | None, *, on_gpu: bool) -> None:
    """Raise ArgumentError if threads are given for a GPU engine, which has none."""
    if on_gpu and num_threads is not None:
        raise ArgumentError("num_threads is given, and the engine runs on a GPU: leave it out, or pass the target cpu")


def open_gpus(core: Any, target: Target, num_ranks: int, device_ids: Sequence[int] | None = None) -> list[Any]:
    """Make a ``_core.GpuContext`` for each of ``num_ranks`` ranks of this process; none on a CPU.

    The caller keeps them until it has made the executor, so that contexts are made only once. Raises DeviceError if the
    engine is for a GPU and there is none.
    """
    if target.kind == "cpu":
        return []
    return [core.GpuContext(device) for device in (range(num_ranks) if device_ids is None else device_ids)]


def available_memory(
    gpus: Sequence[Any],
    manifest: Manifest,
    draft: Manifest | None = None,
    num_loras: int = 0,
    others: Sequence[Manifest] = (),
    elsewhere: Sequence[int] = (),
) -> int:
    """Bytes of a rank's device that are free for the KV cache; the least over all devices (:func:`open_gpus`).

    Weights and workspace of the engine and of the engine ``draft`` are subtracted. ``num_loras`` adapters must fit
    beside them, but share the memory with the KV cache. ``others`` are the manifests of all ranks but the first;
    ``elsewhere`` has the free bytes of the devices of ranks in other processes; these ranks come first.

    Raises LimitError if the memory does not suffice.
    """
    if manifest.target.kind == "cpu":
        return available_host_memory()
    ranks = [manifest, *others]
    found = [*elsewhere, *(gpu.free_memory for gpu in gpus)]
    free, memory = min(
        ((free, rank.memory) for free, rank in zip(found, ranks, strict=False)),
        key=lambda pair: pair[0] - pair[1].weights - pair[1].workspace,
    )
    needs = [memory, *([draft.memory] if draft else [])]
    weights, workspace = sum(memory.weights for memory in needs), sum(memory.workspace for memory in needs)
    if free < weights + workspace:
        what = "this engine needs" if draft is None else "this engine and its draft model need"
        raise LimitError(
            f"{what} {weights:,} bytes for weights and {workspace:,} for the workspace, and "
            f"the GPU has {free:,} free: run it on one with more memory, or build it again with a smaller "
            "--max_num_tokens or --max_batch_size"
        )
    adapters = 0 if manifest.lora is None else num_loras * manifest.lora.slot_bytes
    if free < weights + workspace + adapters:
        raise LimitError(
            f"the slots of {num_loras} adapters take {adapters:,} bytes beside {weights:,} for weights and "
            f"{workspace:,} for the workspace, and the GPU has {free:,} free: lower max_loras, or build the engine "
            "again with a smaller --max_lora_rank"
        )
    return int(free - weights - workspace)


def adapter_slots(core: Any, manifest: Manifest, num_loras: int, device_ids: Sequence[int] | None) -> AdapterSlots:
    """The slots of ``num_loras`` adapters on the engine's GPU; none on a CPU, where adapters need no slots."""
    if manifest.target.kind != "cuda" or manifest.lora is None or num_loras == 0:
        return AdapterSlots()
    slab_bytes = core.cuda_slab_bytes(0 if device_ids is None else device_ids[0])
    return AdapterSlots(num_loras, num_loras * manifest.lora.slot_bytes, slab_bytes)


def make_executor(
    core: Any,
    ranks: Sequence[Any],
    manifest: Manifest,
    *,
    num_threads: int,
    num_blocks: int,
    features_of: Any = None,
    num_loras: int = 0,
    adapter_bytes: int | None = None,
    device_ids: Sequence[int] | None = None,
) -> Any:
    """A ``_core.DeviceExecutor`` over the engines of all ranks; on a CPU it has ``num_threads`` threads (0: all cores).

    On GPUs (those with the numbers ``device_ids``, or the first ones) it has ``num_loras`` slots for adapters, which
    take ``adapter_bytes`` beside the KV cache (None: all that they need) and borrow the rest from it.

    The engine of a drafting head reads features that the executor ``features_of`` keeps.

    Raises the errors of ``_core.open_executor`` and, for engines of TensorRT, of ``open_network``.
    """
    target = manifest.target
    directories = library_directories() if target.kind == "cuda" else []
    network = None
    if target.kind == "tensorrt":
        _check_arch(core.cuda_device()["arch"], target)
        # imported only here, because other engines do not need these packages
        from trtllm_lite.runtime.tensorrt.network import open_network

        network = open_network(ranks[0], manifest, num_blocks)
    return core.open_executor(
        tuple(ranks),
        num_blocks=num_blocks,
        num_threads=num_threads,
        library_directories=directories,
        network=network,
        features_of=features_of,
        num_loras=num_loras,
        adapter_bytes=adapter_bytes,
        devices=device_ids or (),
    )


def _check_arch(found: str, target: Target) -> None:
    if found not in target.archs:
        raise DeviceError(
            f"this GPU is {found}, and TensorRT built the engine for {' and '.join(target.archs)}: run it on one of "
            f"these, or build it again with --target {found}"
        )
