"""Computes the least time that a device's memory and arithmetic allow for a decode step, a first token, a workload."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from trtllm_lite.bench.latency_shape import LatencyShape
from trtllm_lite.bench.mixtures import is_grouped, mixtures, operands_of
from trtllm_lite.bench.operations import products_flops, prompt_flops_of, step_flops
from trtllm_lite.bench.workload import PlannedRequest
from trtllm_lite.engine.plan import NetworkInstruction, PlanTensor
from trtllm_lite.engine.reader import EngineFile
from trtllm_lite.errors import ArgumentError


@dataclass(frozen=True)
class Ceilings:
    """The highest measured rates of a device, each per second; None if a rate is unknown.

    ``bandwidth`` counts bytes read from the device's memory, ``flops`` operations of matrix products,
    ``host_bandwidth`` bytes copied from the host's memory.
    """

    bandwidth: float | None = None
    flops: float | None = None
    host_bandwidth: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not 0 < value < float("inf"):
                raise ArgumentError(f"the ceiling {name} is {value}: expected a finite number above 0")


UNKNOWN = Ceilings()

Stages: TypeAlias = Sequence[EngineFile]  # the first rank of each stage, in order; one entry without a pipeline


@dataclass(frozen=True)
class SharesRead:
    """The measured shares of a rank's experts that steps read, as means over layers.

    ``first``: in steps of the first tokens; ``step``: in later steps. None means not measured; all experts are then
    assumed to be equally likely.
    """

    first: float | None = None
    step: float | None = None


def latency_floors(
    stages: Stages,
    shape: LatencyShape,
    ceilings: Ceilings,
    *,
    first_s: float,
    step_s: float,
    shares: SharesRead = SharesRead(),
) -> dict[str, Any]:
    """How near the first tokens after ``first_s`` and a mean decode step of ``step_s`` seconds come to the ceilings.

    The floor of the first tokens is the time of the products and the attention of all prompts, or the time to read the
    weights if that is longer. Each stage of a pipeline is a device: a token passes all stages, which compute for the
    parts of the batch in turn (one part per stage). Without ceilings only numbers of bytes are reported, for a rank of
    each stage. In a mixture of experts only the ``shares`` of experts that were read are counted.
    """
    rows = shape.batch_size / min(shape.batch_size, _num_devices(stages))
    weights = [weight_bytes_per_step(engine, rows, shares.step) for engine in stages]
    cache = [kv_bytes_per_step(engine, shape) for engine in stages]
    figures: dict[str, Any] = {"weight_bytes_per_step": sum(weights), "kv_bytes_per_step": sum(cache)}
    figures |= _work(stages, shape, ceilings, shares.first)
    if ceilings.bandwidth is not None:
        floor = _decode_floor(stages, shape, ceilings, shares.step)
        figures["read_bandwidth_bytes_per_s"] = ceilings.bandwidth
        figures |= {"floor_inter_token_latency_s": floor, "fraction_of_floor": floor / step_s}
    if ceilings.flops is not None:
        floor = _prompts_floor(stages, shape, ceilings.flops)
        if ceilings.bandwidth is not None:
            floor = max(floor, _prompts_reading(stages, shape, shares.first) / ceilings.bandwidth)
        figures |= {"floor_time_to_first_token_s": floor, "fraction_of_first_token_floor": floor / first_s}
    return figures


def _work(stages: Stages, shape: LatencyShape, ceilings: Ceilings, share_read: float | None) -> dict[str, Any]:
    """The operations and bytes of a roofline; none for a pipeline on several devices, which have a roofline each."""
    if _num_devices(stages) > 1:
        return {}
    figures = {
        "step_operations": sum(step_flops(engine, shape) for engine in stages),
        "prompts_operations": shape.batch_size * sum(prompt_flops_of(engine, shape.input_len) for engine in stages),
        "prompts_weight_bytes": _prompts_reading(stages, shape, share_read),
    }
    return figures if ceilings.flops is None else {**figures, "peak_operations_per_s": ceilings.flops}


def _prompts_reading(stages: Stages, shape: LatencyShape, share_read: float | None) -> int:
    """The least bytes of weights that all prompts together have to read: each weight once."""
    tokens = shape.batch_size * shape.input_len
    return sum(weight_bytes_per_step(engine, tokens, share_read) for engine in stages)


def pipeline_step(stages: Sequence[float], crossings: float, groups: int) -> float:
    """Seconds between two tokens of a request, where ``stages`` are the seconds of each stage.

    Transfers between stages take ``crossings`` seconds in all. Each stage computes for ``groups`` groups of requests in
    turn, so that all may have to wait for the slowest.
    """
    return max(sum(stages) + crossings, groups * max(stages))


def _decode_floor(stages: Stages, shape: LatencyShape, ceilings: Ceilings, share_read: float | None) -> float:
    assert ceilings.bandwidth is not None
    groups = min(shape.batch_size, _num_devices(stages))
    rows = shape.batch_size / groups
    cache = [kv_bytes_per_step(engine, shape) / groups / ceilings.bandwidth for engine in stages]
    products = [_products_floor(engine, rows, ceilings, share_read) for engine in stages]
    seconds = _of_devices(stages, [sum(parts) for parts in zip(products, cache, strict=True)])
    crossings = sum(rows * _received_bytes(engine) for engine in stages) / ceilings.bandwidth
    return pipeline_step(seconds, crossings, groups)


def _prompts_floor(stages: Stages, shape: LatencyShape, flops: float) -> float:
    """Seconds of all prompts; a step has at least one prompt, or as much of a prompt as ``max_num_tokens`` allows."""
    limit = stages[0].manifest.limits.max_num_tokens
    steps = max(shape.batch_size, -(-shape.batch_size * shape.input_len // limit))
    of_one = [prompt_flops_of(engine, shape.input_len) for engine in stages]
    seconds = _of_devices(stages, [shape.batch_size * operations / flops for operations in of_one])
    return max(seconds) + (sum(seconds) - max(seconds)) / steps  # the other stages work on an earlier or a later step


def start_up_floor(engine: EngineFile, ceilings: Ceilings, seconds: float) -> dict[str, Any]:
    """How close a start-up of ``seconds`` comes to the time of copying an engine's weights to the device."""
    if ceilings.host_bandwidth is None or engine.manifest.stripped:
        return {}
    weights = sum(tensor.num_bytes for name, tensor in engine.tensors.items() if name.startswith("weights."))
    floor = weights / ceilings.host_bandwidth
    return {"floor_start_up_s": floor, "fraction_of_start_up_floor": floor / seconds}


def serving_floor(
    stages: Stages,
    requests: Sequence[PlannedRequest],
    max_batch_size: int,
    ceilings: Ceilings,
    seconds: float,
    share_read: float | None = None,
) -> dict[str, Any]:
    """How close ``requests``, served in ``seconds``, come to the sum of the floors of their prompts and decode steps.

    In a pipeline all stages compute as long as there are requests: the slowest stage determines the floor. A decode
    step reads ``share_read`` of a rank's experts, the measured mean over all steps; for None see
    :func:`weight_bytes_per_step`.
    """
    if ceilings.bandwidth is None or ceilings.flops is None:
        return {}
    batch = min(max_batch_size, len(requests))
    groups = min(batch, _num_devices(stages))
    steps = groups * sum(request.output_len - 1 for request in requests) / batch
    attended = sum((request.output_len - 1) * (request.prompt_len + request.output_len / 2) for request in requests)
    of_stages = []
    for engine in stages:
        cache = engine.manifest.kv_cache
        of_states = cache.state_bytes * sum(request.output_len - 1 for request in requests)
        reading = (attended * cache.token_bytes + of_states) / ceilings.bandwidth
        prompts = sum(prompt_flops_of(engine, request.prompt_len) for request in requests)
        products = steps * _products_floor(engine, batch / groups, ceilings, share_read)
        of_stages.append(prompts / ceilings.flops + products + reading)
    floor = max(_of_devices(stages, of_stages))
    tokens = sum(request.output_len for request in requests)
    return {"ceiling_output_tokens_per_s": tokens / floor, "fraction_of_ceiling": floor / seconds}


def _num_devices(stages: Stages) -> int:
    return 1 if stages[0].manifest.target.kind == "cpu" else len(stages)


def _of_devices(stages: Stages, seconds: Sequence[float]) -> list[float]:
    """The seconds of each device: the sum of the ``seconds`` of its stages. On CPUs all stages share one device."""
    return list(seconds) if _num_devices(stages) > 1 else [sum(seconds)]


def _received_bytes(engine: EngineFile) -> int:
    """Bytes per token that the engine's stage receives from the previous one."""
    plan = engine.plan
    rows = [plan.tensors[index] for index in plan.inputs.values()]
    return sum(tensor.max_bytes(plan.symbols) for tensor in rows) // plan.symbols["num_tokens"]


def _products_floor(engine: EngineFile, rows: float, ceilings: Ceilings, share_read: float | None) -> float:
    """Seconds of a decode step without attention: to read the weights, or to compute products if that is longer."""
    assert ceilings.bandwidth is not None
    reading = weight_bytes_per_step(engine, rows, share_read) / ceilings.bandwidth
    if ceilings.flops is None:
        return reading
    return max(reading, products_flops(engine, rows) / ceilings.flops)


def weight_bytes_per_step(engine: EngineFile, rows: float = 1, share_read: float | None = None) -> int:
    """Bytes of weights that a step of ``rows`` rows has to read: all except tables in which it looks up a few rows.

    Of a rank's experts the measured share ``share_read`` is counted; without a measurement, the share that the rows are
    expected to choose if all experts are equally likely, and those that all rows share. Real choices are skewed, and
    read less.
    """
    plan = engine.plan
    if isinstance(plan.programs[0].instructions[0], NetworkInstruction):
        return engine.manifest.memory.weights
    shares: dict[int, float] = {}
    expected = max((one.share_read(rows) for one in mixtures(engine)), default=1.0)
    chosen = expected if share_read is None else share_read
    for instruction in plan.programs[0].instructions:
        grouped = is_grouped(plan, instruction)
        for index in operands_of(plan, instruction):
            tensor = plan.tensors[index]
            if tensor.kind == "weight":
                shares[index] = chosen if grouped and len(tensor.shape) > 1 else 1.0
    return round(sum(share * _stored_bytes(engine, plan.tensors[index]) for index, share in shares.items()))


def _stored_bytes(engine: EngineFile, tensor: PlanTensor) -> int:
    """Bytes of a weight with the padding of its layout. Weights of a stripped engine are counted without it."""
    stored = engine.tensors.get(f"weights.{tensor.name}")
    return tensor.max_bytes(engine.plan.symbols) if stored is None else stored.num_bytes


def kv_bytes_per_step(engine: EngineFile, shape: LatencyShape) -> int:
    """Bytes of keys and values that a decode step of ``shape`` reads, as the mean over all of its decode steps.

    Decode step k (of output_len - 1 steps) attends to the prompt and k tokens after it. Each state counts once: a step
    reads the matrix and the tokens behind it, of which there are half as many as there is room for, and writes one
    token, and the matrix in every 16th step (plugins/replay.py).
    """
    cache = engine.manifest.kv_cache
    context = shape.input_len + shape.output_len / 2
    of_tokens = context * cache.token_bytes
    return round(shape.batch_size * (of_tokens + cache.state_bytes))
